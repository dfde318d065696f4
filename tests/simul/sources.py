"""What a session's streams are given, by the value of --carry."""

from leapformer_fairseq.runtime.simul.session import Samples
from leapformer_fairseq.simul.states import States

SOURCES = {"none": Samples, "encoder": States}

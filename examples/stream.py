"""Translate a recording (16 kHz, mono) while it is read, 0.4 s at a time.

python examples/stream.py CHECKPOINT DATA CONFIG.yaml RECORDING.wav
"""

import sys

import soundfile

from leapformer_fairseq.runtime.simul.policy import PolicyOptions
from leapformer_fairseq.runtime.simul.stream import DecodingOptions, TranslationStream
from leapformer_fairseq.simul.loading import load_system

checkpoint, data, config, recording = sys.argv[1:]
system = load_system(checkpoint, data, config, PolicyOptions(k=3))
stream = TranslationStream(system, DecodingOptions())
with soundfile.SoundFile(recording) as file:
    while len(samples := file.read(6400, dtype="float32")):
        stream.push(samples)
        stream.advance(source_finished=False)
        if text := stream.flush(final=False):
            print(text, end=" ", flush=True)
stream.advance(source_finished=True)
print(stream.flush(final=True))

"""Thin registered fairseq models.

fairseq's `--user-dir` imports this package and every file in it, so none of them may be a script.
"""

from ..compat.register import prepare_fairseq

prepare_fairseq()

"""Thin registered fairseq models; fairseq's `--user-dir` imports this package and every file in it. No scripts."""

from .. import prepare_fairseq

prepare_fairseq()

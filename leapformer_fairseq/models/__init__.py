"""Thin registered fairseq models. fairseq's `--user-dir` imports this package and all its files; no scripts here."""

from ..compat.register import prepare_fairseq

prepare_fairseq()

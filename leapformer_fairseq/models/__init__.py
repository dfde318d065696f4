"""Thin registered fairseq models; fairseq's `--user-dir` imports this package and every file in it. No scripts."""

from .. import register

# All of them, patches and criterions included, whichever model is imported first and by whom.
register()

"""Registered fairseq tasks; fairseq's `--user-dir` imports this package and every file in it."""

from ..compat.register import import_modules

import_modules()  # --user-dir does not import criterions/ and optim/

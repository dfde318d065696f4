"""Imported once by the process whose forks run commands; see forks.py."""

from .forks import import_all

import_all()

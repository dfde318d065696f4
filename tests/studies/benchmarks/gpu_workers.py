"""Working processes of `gpu` that fail, for test_gpu.py; here they start without PyTorch, in no time."""

import os
import sys
import time

LOST = 3  # gpu.LOST


def dies_and_hangs(pipe, args, first, until):
    """A working process that dies in case 0, hangs in case 1, loses its GPU after case 2, and then does the rest."""
    pipe.send({"about": {}})
    for i in range(first, 4):
        pipe.send({"task": i, "started": True})
        if i == 0:
            os.kill(os.getpid(), 9)
        if i == 1:
            time.sleep(60)
        pipe.send({"task": i, "rows": [{"ok": True}], "seconds": 0.0})
        if i == 2:
            sys.exit(LOST)


def cannot_begin(pipe, args, first, until):
    sys.exit(1)


def hangs_before_it_begins(pipe, args, first, until):
    time.sleep(60)

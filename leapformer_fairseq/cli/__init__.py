"""The `leapformer` command; every sub-command is a module with `HELP`, `add_arguments(parser)` and `run(args)`.

Most modules import torch and fairseq inside functions only, so that --help and errors in options come at once.
"""

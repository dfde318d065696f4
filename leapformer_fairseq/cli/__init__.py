"""The `leapformer` command: a module for each sub-command, which `main` imports when it is called.

Such a module has a docstring that begins with its name and describes it, also in the help; `OPTIONS`, a table (see
`support.options`); and `run`, the function that takes their values, one by one or as `args`. Instead of these two, a
command of several steps has `STEPS`. Most modules import torch and fairseq inside functions only, so that --help and
errors in options come at once.
"""

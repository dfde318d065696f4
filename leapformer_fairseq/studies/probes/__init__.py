"""Small tasks that show in minutes what a mechanism can remember, before it is trained for hours."""

# Of the command line, whose help needs no torch.
NAMES = ("recall", "selective-copy", "reversal", "copying", "listops")  # of `tasks.PROBES`
RATES = (1e-3, 3e-3, 1e-2)

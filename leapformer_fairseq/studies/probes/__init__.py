"""Small tasks that show within minutes what a mechanism can remember, before hours of training."""

# Here, not in `tasks`, so that the command line can show its help without importing torch.
NAMES = ("recall", "selective-copy", "reversal", "copying", "listops")  # the keys of `tasks.PROBES`
RATES = (1e-3, 3e-3, 1e-2)

"""The `leapformer` command; every sub-command is a module with `HELP`, `add_arguments(parser)` and `run(args)`."""

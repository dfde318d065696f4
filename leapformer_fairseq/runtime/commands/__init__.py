"""Commands that need nothing else than `runtime/`, with exported models; `cli/` adds what needs a checkpoint."""

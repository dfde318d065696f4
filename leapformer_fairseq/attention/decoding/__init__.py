"""One token at a time: fused steps, chosen from what a mechanism describes."""

"""Quality against latency over a grid of checkpoints, policies and segment sizes."""

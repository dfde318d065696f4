"""The benchmarks of `leapformer bench`, one per module."""

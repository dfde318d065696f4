"""A folder of one's own (`--user-dir`): one mechanism of each family, each in one small file.

They are what "Adding a mechanism" (docs) shows, and a test of the core; see test_toys.py.
"""

from . import buckets, cubic, decay, delta, fade, gate, slots  # noqa: F401  (each registers its mechanism)

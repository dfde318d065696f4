"""One mechanism of each family, each in one small file: what "Adding a mechanism" (docs) shows, and a test of the core.

`LEAPFORMER_TOYS=1` registers them before tests are collected; see test_toys.py.
"""

"""Measurements that the command line offers as `leapformer bench`; each module is one of them."""

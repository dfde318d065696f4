"""Policies as users write them; docs/adding_a_policy.md shows them, and tests/simul/test_own_policy.py runs them."""

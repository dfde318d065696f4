"""Plots: attention maps and proportions of trained models, and benchmark results."""

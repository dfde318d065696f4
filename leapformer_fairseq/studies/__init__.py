"""Experiments: recipes, benchmarks, linearize, ablation, probes, Sparsefinder, Long Range Arena, curves."""

"""Plots of attention maps, benchmarks, runs, latency, probes and speech."""

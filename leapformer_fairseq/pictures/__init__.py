"""Pictures: attention maps and proportions of trained models, and the results of benchmarks."""

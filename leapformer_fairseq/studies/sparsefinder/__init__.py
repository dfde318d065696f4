"""Sparsefinder (Treviso et al., 2022, arXiv:2109.12188): predict the graph of an entmax teacher, and measure how well.

extraction.py  writes queries, keys and graphs of a teacher to disk
fitting.py     fits projections and centroids for each head
grids.py       the option values of a sweep
measures.py    sparsity, recall and precision of a predicted graph
sweep.py       measures a point of a grid with every window
quality.py     perplexity or BLEU with a pattern in place of the full graph
tags.py        parts of speech in the buckets of k-means
study.py       the grids of the commands as studies; experiments.py writes their files
report.py      fronts and tables; pictures.py draws them
"""

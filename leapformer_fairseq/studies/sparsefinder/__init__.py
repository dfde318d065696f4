"""Sparsefinder (Treviso et al., 2022, arXiv:2109.12188): predict the graph of an entmax teacher, and measure how well.

extraction.py  writes queries, keys and graphs of a teacher to disk
fitting.py     fits projections and centroids for each head
grids.py       the option values of a sweep
measures.py    sparsity, recall and precision of a predicted graph
sweep.py       measures every point of a grid
quality.py     perplexity or BLEU with a pattern in place of the full graph
tags.py        parts of speech in the buckets of k-means
experiments.py the experiments of the commands, and the files that they write
report.py      fronts and tables; pictures.py draws them
"""

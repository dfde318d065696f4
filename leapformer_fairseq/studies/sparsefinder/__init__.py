"""Sparsefinder (Treviso et al., 2022, arXiv:2109.12188): predict the graph of an entmax teacher, and measure how well.

extraction.py  queries, keys and graphs of a teacher, written to disk
fitting.py     projections and centroids for each head
grids.py       the values of options that a sweep goes over
measures.py    sparsity, recall and precision of a predicted graph
sweep.py       these for every point of a grid
quality.py     perplexity or BLEU with a pattern in place of the full graph
tags.py        parts of speech in the buckets of k-means
experiments.py what the commands put together of these, and the files they write
report.py      fronts and tables; pictures.py draws them
"""

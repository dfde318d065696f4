"""Long Range Arena (Tay et al., 2021, arXiv:2011.04006): its generators, its published files, and arrays for training.

listops.py     nested lists whose value is a digit: generator and reader
pathfinder.py  pictures with two curves: generator and reader; _pictures draws
readers.py     of CIFAR-10 in greyscale; of reviews, and pairs of papers, as bytes
prepare.py     the arrays of any of these tasks
"""

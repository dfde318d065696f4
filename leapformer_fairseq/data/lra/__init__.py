"""Long Range Arena (Tay et al., 2021, arXiv:2011.04006): its generators, its published files, and arrays for training.

listops.py     nested lists with a digit as their value: generator and reader
pathfinder.py  pictures with two curves: generator and reader
"""

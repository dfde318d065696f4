"""Targeted ablation: which attention blocks of a model can be linear, and with which mechanism.

Agostinelli & Chen, 2023, Modular Linearized Attention (arXiv:2304.08453), table 4: one block at a time is replaced, all
models are trained in the same way, and the replacements that cost little are combined. `search` decides what to train
and what to recommend, `training` holds the command that is varied, `running` runs and resumes it, `study` combines
these, `report` and `picture` write the results.
"""

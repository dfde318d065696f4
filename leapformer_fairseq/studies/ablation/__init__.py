"""Targeted ablation: which attention blocks of a model can be linear, and with which mechanism.

Agostinelli & Chen, 2023, Modular Linearized Attention (arXiv:2304.08453), table 4: one block at a time is replaced, all
models are trained alike, and the replacements that cost little are put together. `search` says what to train and what
to recommend, `training` knows the command that is varied, `running` starts it and goes on after a break, `study` puts
these together, `report` and `picture` write down what came out.
"""

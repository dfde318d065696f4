"""Recipes: a data set becomes models and scores in steps that can be interrupted and repeated.

`catalog` names them, `configuration` reads their hyperparameters (configs/DATASET/NAME.yaml), `shell` runs their
commands; each of the other modules has the steps of one kind of task.
"""

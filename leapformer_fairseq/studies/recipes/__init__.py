"""Recipes: from a data set to models and scores, in steps that can be interrupted and repeated.

`catalog` lists them, `configuration` reads their hyperparameters (configs/DATASET/NAME.yaml), `shell` runs their
commands; each of the other modules contains the steps for one kind of task.
"""

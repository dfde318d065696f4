"""Optimizers that the papers use and fairseq lacks."""

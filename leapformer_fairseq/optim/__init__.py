"""Optimizers that papers used and fairseq has not."""

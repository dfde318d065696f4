"""Thin registered fairseq models; fairseq imports every file here. No scripts."""

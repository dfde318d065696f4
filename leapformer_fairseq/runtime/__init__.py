"""Exported models without PyTorch and fairseq: numpy, onnxruntime and sentencepiece are enough.

`python -m leapformer_fairseq.runtime DIR` translates lines; `leapformer export` makes DIR.
"""

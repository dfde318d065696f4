"""Exported models without PyTorch and fairseq: numpy, onnxruntime and sentencepiece are enough; for speech also
kaldi-native-fbank and soundfile.

`python -m leapformer_fairseq.runtime DIR` translates lines, or recordings; `leapformer export` makes DIR.
"""

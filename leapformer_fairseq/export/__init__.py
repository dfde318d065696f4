"""Trained models as ONNX graphs with explicit states, which run without Python, PyTorch and fairseq."""

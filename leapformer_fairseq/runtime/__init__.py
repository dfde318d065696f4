"""What translates live and runs exported models, without PyTorch and fairseq: installed alone, it needs numpy,
onnxruntime, soundfile, sentencepiece and websockets.

`python -m leapformer_fairseq.runtime DIR` runs the model in DIR, a folder made by `leapformer export`: it translates
lines, continues them, translates recordings while it hears them, or speaks.
"""

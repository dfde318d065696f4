"""Patches that let fairseq 0.12.3 run on current Python, PyTorch and numpy: a small patch per defect, with its reason.

`leapformer_fairseq.register` calls `apply`. A patch is applied only if its defect is detected; `leapformer doctor`
lists the patches in force. Only defects belong here: what our models need beyond them is in `models/task.py`.
`errors_explained.py` explains fairseq's errors to the user. No patch weakens a protection: checkpoints are still loaded
with `weights_only=True`, which additionally admits only the few harmless types that fairseq stores, and the text of an
option is never executed (`trust.py`).
"""

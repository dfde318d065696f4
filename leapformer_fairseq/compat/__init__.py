"""What makes fairseq 0.12.3 run on today's Python, PyTorch and numpy: one small patch per defect, each with its reason.

`leapformer_fairseq.register` calls `apply`. A patch is applied only where its defect is found; `leapformer doctor`
lists what was done. Only defects belong here: what our models need beyond them is in `models/task.py`, and what
fairseq's errors mean in `fairseq_errors.py`. No patch weakens a protection: checkpoints are still loaded with
`weights_only=True`, only the few harmless types that fairseq stores are allowed in addition, and what options say is
never executed (`trust.py`).
"""

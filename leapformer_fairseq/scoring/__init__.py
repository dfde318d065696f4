"""Scores of a SimulEval run, and of whole talks, from logs: quality, and latency without and with computation.

SimulEval 1.1.4 computes its plain latencies from the computation-aware times as soon as `--computation-aware` is given,
and turns every error of the BLEU tokenizer into BLEU 0; here both are correct. `runlog` reads the logs, `latency` and
`quality` are pure functions, `report` combines them. For talks, `talks` and `streamlog` read the logs, `segmentation`
reads the reference segments, `pieces` cuts the translation by `alignment`, and `talk_report` computes the scores.
"""

from __future__ import annotations

"""Scores of a SimulEval run from its logs: quality, latency, and latency with the time of computation included.

SimulEval 1.1.4 computes its plain latencies from the computation-aware times as soon as `--computation-aware` is given,
and turns every error of the BLEU tokenizer into BLEU 0; here both are right. `runlog` reads the logs, `latency` and
`quality` are pure functions, `report` puts them together.
"""

from __future__ import annotations

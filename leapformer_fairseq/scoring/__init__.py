"""Quality and latency of translations from logs of SimulEval runs, fairseq's commands and whole talks.

SimulEval 1.1.4 computes its plain latencies from the computation-aware times as soon as `--computation-aware` is given,
and turns every error of the BLEU tokenizer into BLEU 0; here both are correct. `runlog` reads the logs, `latency` and
`quality` compute scores, `report` combines them. For talks, `segmentation` reads the reference segments, `pieces` cuts
the translation by `alignment`, and `talk_report` combines the scores.
"""

from __future__ import annotations

"""All scores of simultaneous translation of whole talks in one JSON structure.

Talks are cut into a piece for each reference segment, and quality and latency are those of the pieces (Polák et al.,
2025, arXiv:2509.17349).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from ..runtime.formats import jsonl
from ..runtime.formats.runlog import INSTANCES_LOG
from ..runtime.formats.streamlog import read_stream_log
from ..runtime.formats.talks import LOGGED, QUEUED, REPAIRED, Talk, read_talks
from ..support.errors import LeapformerError
from ..support.signature import signature
from .latency import long_form_scores, regime
from .pieces import Piece, cut, read_pieces, read_segments, write_pieces
from .quality import bleu, chrf, score_by_command
from .report import combined

LATENCIES = ("LongYAAL", "LongLAAL", "LongAL", "LongAP", "LongDAL")
WAYS = ("", LOGGED, REPAIRED, QUEUED)  # suffixes: without computation, and three ways to count it, see `talks.Talk`
PILED_UP_MS = 2_000.0  # if computation adds more to a latency, it may have been summed over the talk


@dataclass(frozen=True)
class TalkOptions:
    """How to score talks.

    unit:             of latency: "word" or "char".
    segmenter, lang:  see `pieces.cut`.
    tokenize:         sacreBLEU's tokenizer.
    quality_command:  a command line that scores pieces; see the module of this name.
    transcripts:      a file with the source text of the segments, one per line, for `quality_command`.
    resegmented:      an output file for the pieces.
    threads:          CPU threads of the process that translated, if known.
    """

    unit: str = "word"
    segmenter: str = "soft"
    lang: str | None = None
    tokenize: str = "13a"
    quality_command: str | None = None
    transcripts: str | None = None
    resegmented: str | None = None
    threads: int | None = None


def kind_of(path: Path) -> str | None:
    """Recognise a log by its first JSON object: "talks", "stream" (simulstream's log), "pieces"; None for other files.

    Raises LeapformerError if the first line looks like JSON but is damaged.
    """
    if not path.is_file():
        return None
    with path.open("rb") as file:  # not read_lines, for which text that is not UTF-8 is an error
        first = next((line for line in file if line.strip()), b"").decode("utf-8", "replace")
    if not first.lstrip().startswith("{"):
        return None
    entry = jsonl.parse(first, f"{path}:1")
    for kind, keys in (
        ("pieces", {"emission_cu", "segid", "docid"}),  # first: pieces have a prediction, too
        ("stream", {"model_loading_time", "metadata", "total_audio_processed"}),
        ("talks", {"delays", "prediction"}),
    ):
        if keys & entry.keys():
            return kind
    return None


def score_talks(
    logs: Sequence[str], segments: str, references: str, options: TalkOptions | None = None
) -> dict[str, Any]:
    """Score logs of talks against the references of `segments`. Keys as in `score_pieces`, and two more.

    `erasure` is the normalised erasure: units taken back per unit of the final text. `compute` has seconds of
    computation per second of audio (the real-time factor) and the 95th percentile of the seconds per chunk. Both are
    None for a log without this information. Raises LeapformerError if files are damaged or do not fit each other.
    """
    options = options or TalkOptions()
    parts = read_segments(segments, references)
    talks = [talk for log in logs for talk in _read(Path(log), options.unit)]
    pieces = cut(talks, parts, options.unit, options.segmenter, options.lang)
    if options.resegmented:
        write_pieces(options.resegmented, pieces)
    return {**score_pieces(pieces, options), "segmenter": options.segmenter, "lang": options.lang, **_effort(talks)}


def score_resegmented(logs: Sequence[str], options: TalkOptions | None = None) -> dict[str, Any]:
    """Score files of pieces that were cut before. Raises LeapformerError if they are damaged."""
    options = options or TalkOptions()
    pieces = [piece for log in logs for piece in read_pieces(Path(log), options.unit)]
    return {**score_pieces(pieces, options), "segmenter": None, "lang": None, **_effort([])}


def score_pieces(pieces: Sequence[Piece], options: TalkOptions) -> dict[str, Any]:
    """Score pieces. Keys as in `report.score_run`, with pieces for utterances, but:

    scores:       latencies are means over the pieces that have them, in ms (LongAP: a ratio), also with the suffixes
                  _CA, _CA_repaired and _CA_queued if computation was logged (see `talks.Talk`).
    StreamLAAL_s: LongLAAL in seconds, by suffix.
    regime:       see `latency.regime`.
    signature:    of the environment, see `support.signature`.
    n_recordings: recordings with pieces.
    """
    instances = [piece.instance for piece in pieces]
    texts = [instance.prediction for instance in instances], [instance.reference for instance in instances]
    quality = [bleu(*texts, options.tokenize), chrf(*texts)]
    if options.quality_command:
        quality.append(score_by_command(options.quality_command, *texts, options.transcripts))
    names = [name + (way and f"_{way}") for way in WAYS for name in LATENCIES]
    latencies = [piece_latencies(piece, options.unit) for piece in pieces]
    report = combined(instances, quality, latencies, names, options.unit, "LongYAAL")
    means = report["scores"]
    return report | {
        "StreamLAAL_s": {
            name.removeprefix("LongLAAL").removeprefix("_") or "source heard": value / 1000
            for name, value in means.items()
            if name.startswith("LongLAAL")
        },
        "regime": regime(means.get("LongYAAL")),
        "marks": [*report["marks"], *_piled_up(means)],
        "signature": signature(
            threads=options.threads, level=options.unit, segmenter=options.segmenter, lang=options.lang
        ),
        "n_recordings": len({piece.place[0] for piece in pieces}),
        "instances": [
            {"docid": piece.place[0], "segid": piece.place[1], **scores}
            for piece, scores in zip(pieces, report["instances"], strict=True)
        ],
    }


def _read(path: Path, unit: str) -> list[Talk]:
    if path.is_dir():
        path = path / INSTANCES_LOG
    kind = kind_of(path)
    if kind == "pieces":
        raise LeapformerError(f"{path} is resegmented already; leave --segments and --references out")
    if kind is None:
        raise LeapformerError(
            f"{path}: no such log; --segments is for OmniSTEval's JSONL of whole talks, simulstream's metrics log, and "
            "the output of `leapformer stream --log`"
        )
    talks = read_stream_log(path, unit) if kind == "stream" else read_talks(path, unit)
    if not talks:
        raise LeapformerError(f"{path} holds no recording; was the run interrupted?")
    return talks


def piece_latencies(piece: Piece, unit: str) -> dict[str, float]:
    """The latencies of a piece, without computation and with each way of counting it that was logged."""
    instance, latencies = piece.instance, dict[str, float]()
    for way, times in {"": instance.delays, **piece.aware}.items():
        scores = long_form_scores(times, instance.source_length, instance.reference, piece.end, unit)
        latencies |= {name + (way and f"_{way}"): value for name, value in scores.items()}
    return latencies


def _effort(talks: Sequence[Talk]) -> dict[str, Any]:
    efforts = [talk.effort for talk in talks if talk.effort is not None]
    if not talks or len(efforts) < len(talks):
        return {"erasure": None, "compute": None}
    units, audio_s = sum(len(talk.units) for talk in talks), sum(effort.audio_s for effort in efforts)
    chunks = sorted(seconds for effort in efforts for seconds in effort.chunks_s)
    compute = {
        "compute_s": sum(chunks),
        "audio_s": audio_s,
        "seconds_per_second": sum(chunks) / audio_s if audio_s else None,
        "chunk_s_95": chunks[ceil(0.95 * len(chunks)) - 1] if chunks else None,
    }
    return {"erasure": sum(effort.erased for effort in efforts) / units if units else None, "compute": compute}


def _piled_up(means: dict[str, float]) -> list[str]:
    plain, aware = means.get("LongYAAL"), means.get(f"LongYAAL_{LOGGED}")
    if plain is None or aware is None or aware - plain <= PILED_UP_MS or f"LongYAAL_{REPAIRED}" not in means:
        return []
    return [
        f"computation adds {aware - plain:.0f} ms: a log of SimulEval adds all of the talk so far to every word; "
        "LongYAAL with repaired computation is without that"
    ]

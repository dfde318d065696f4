"""All scores of simultaneous translations of whole talks in one JSON structure.

The talks are cut into a piece for each reference segment; quality and latency are those of the pieces (Polák et al.,
2025, arXiv:2509.17349).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any

from ..runtime.formats import jsonl
from ..runtime.formats.runlog import INSTANCES_LOG
from ..runtime.formats.streamlog import read_stream_log
from ..runtime.formats.talks import LOGGED, QUEUED, REPAIRED, Talk, read_talks
from ..support.errors import LeapformerError
from ..support.signature import signature
from .latency import long_form_scores, regime, simultaneity
from .marks import below_twins, length_ratio, marks
from .pieces import Piece, cut, read_pieces, write_pieces
from .quality import QualityScore, bleu, chrf
from .quality_command import score_by_command
from .segmentation import read_segments

LATENCIES = ("LongYAAL", "LongLAAL", "LongAL", "LongAP", "LongDAL")
WAYS = ("", LOGGED, REPAIRED, QUEUED)
SAMPLES = 1_000  # of the bootstrap
PILED_UP_MS = 2_000.0  # so much more with computation than without: it may have been added up over the talk


@dataclass(frozen=True)
class TalkOptions:
    """How talks are scored: `unit` "word" or "char", `segmenter` as in `pieces.cut`, `tokenize` of sacreBLEU.

    `quality_command`: a program that scores pieces, see `quality_command`; `transcripts`: for it, the source text of
    the segments, one per line. `resegmented`: output file for the pieces. `threads`: of the process that translated,
    if they are known.
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
    """The kind of a file, by its first object: "talks", "stream" (simulstream's log), "pieces", None for anything else.

    Raises LeapformerError for a file in JSON Lines whose first line is damaged.
    """
    if not path.is_file():
        return None
    with path.open("rb") as file:  # it may be of any kind, so this is no error of its text
        first = next((line for line in file if line.strip()), b"").decode("utf-8", "replace")
    if not first.lstrip().startswith("{"):
        return None
    entry = jsonl.parse(first, f"{path}:1")
    for kind, keys in (
        ("pieces", {"emission_cu", "segid", "docid"}),
        ("stream", {"model_loading_time", "metadata", "total_audio_processed"}),
        ("talks", {"delays", "prediction"}),
    ):
        if keys & entry.keys():
            return kind
    return None


def score_talks(
    logs: Sequence[str], segments: str, references: str, options: TalkOptions | None = None
) -> dict[str, Any]:
    """Score the logs of talks against the references of `segments`. See `score_pieces` for the keys.

    Also `erasure` (normalised: units taken back per unit of the final text) and `compute` (seconds of computation per
    second of audio, i.e. the real-time factor, and the time within which 95 % of the chunks are computed, in seconds);
    both are None for a log without this information. Raises LeapformerError.
    """
    options = options or TalkOptions()
    parts = read_segments(segments, references)
    talks = [talk for log in logs for talk in _read(Path(log), options.unit)]
    pieces = cut(talks, parts, options.unit, options.segmenter, options.lang)
    if options.resegmented:
        write_pieces(options.resegmented, pieces)
    return {**score_pieces(pieces, options), "segmenter": options.segmenter, "lang": options.lang, **_effort(talks)}


def score_resegmented(logs: Sequence[str], options: TalkOptions | None = None) -> dict[str, Any]:
    """Score pieces that were cut before. Raises LeapformerError."""
    options = options or TalkOptions()
    pieces = [piece for log in logs for piece in read_pieces(Path(log), options.unit)]
    return {**score_pieces(pieces, options), "segmenter": None, "lang": None, **_effort([])}


def score_pieces(pieces: Sequence[Piece], options: TalkOptions) -> dict[str, Any]:
    """Keys as in `report.score_run`, for pieces instead of utterances.

    `scores` has the mean latencies over the pieces with output, in ms (LongAP: a ratio), with the suffixes _CA,
    _CA_repaired and _CA_queued if computation is known (see `talks.Talk`). `intervals`: halves of the 95 % intervals of
    BLEU and chrF over pieces. `StreamLAAL_s`: LongLAAL in seconds, by suffix. `regime`: see `latency.regime`.
    `n_recordings`: of all pieces.
    """
    instances = [piece.instance for piece in pieces]
    predictions, references = ([getattr(one, side) for one in instances] for side in ("prediction", "reference"))
    quality = [
        bleu(predictions, references, options.tokenize, SAMPLES),
        chrf(predictions, references, SAMPLES),
    ]
    if options.quality_command:
        quality.append(score_by_command(options.quality_command, predictions, references, options.transcripts))
    latencies = [_latencies(piece, options.unit) for piece in pieces]
    order = [name + (way and f"_{way}") for way in WAYS for name in LATENCIES]
    found = {name: [scores[name] for scores in latencies if name in scores] for name in order}
    means = {name: fmean(values) for name, values in found.items() if values}
    shares, lengths = simultaneity(instances, options.unit), length_ratio(predictions, references)
    return {
        "scores": {**{score.name: score.value for score in quality}, **means},
        "intervals": {score.name: score.interval for score in quality if score.interval is not None},
        "StreamLAAL_s": {
            name.removeprefix("LongLAAL").removeprefix("_") or "source heard": value / 1000
            for name, value in means.items()
            if name.startswith("LongLAAL")
        },
        "regime": regime(means.get("LongYAAL")),
        "simultaneity": shares,
        "length_ratio": lengths,
        "marks": [
            *marks(lengths, means.get("LongYAAL"), shares, "LongYAAL"),
            *_piled_up(means),
            *below_twins(means),
        ],
        "signatures": {score.name: score.signature for score in quality},
        "signature": signature(
            threads=options.threads, level=options.unit, segmenter=options.segmenter, lang=options.lang
        ),
        "n_instances": len(pieces),
        "n_empty": sum(not one.delays for one in instances),
        "n_recordings": len({piece.place[0] for piece in pieces}),
        "unit": options.unit,
        "instances": [_instance(piece, quality, latencies[rank], rank) for rank, piece in enumerate(pieces)],
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


def _latencies(piece: Piece, unit: str) -> dict[str, float]:
    one, found = piece.instance, dict[str, float]()
    for way, times in {"": one.delays, **piece.aware}.items():
        scores = long_form_scores(times, one.source_length, one.reference, piece.end, unit)
        found |= {name + (way and f"_{way}"): value for name, value in scores.items()}
    return found


def _instance(piece: Piece, quality: Sequence[QualityScore], latencies: dict[str, float], rank: int) -> dict[str, Any]:
    about = {"index": piece.instance.index, "docid": piece.place[0], "segid": piece.place[1]}
    return about | {score.name: score.per_sentence[rank] for score in quality} | latencies


def _effort(talks: Sequence[Talk]) -> dict[str, Any]:
    known = [talk.effort for talk in talks if talk.effort is not None]
    if not talks or len(known) < len(talks):
        return {"erasure": None, "compute": None}
    units, audio_s = sum(len(talk.units) for talk in talks), sum(one.audio_s for one in known)
    chunks = sorted(seconds for one in known for seconds in one.chunks_s)
    compute = {
        "compute_s": sum(chunks),
        "audio_s": audio_s,
        "seconds_per_second": sum(chunks) / audio_s if audio_s else None,
        "chunk_s_95": chunks[ceil(0.95 * len(chunks)) - 1] if chunks else None,
    }
    return {"erasure": sum(one.erased for one in known) / units if units else None, "compute": compute}


def _piled_up(means: dict[str, float]) -> list[str]:
    plain, aware = means.get("LongYAAL"), means.get(f"LongYAAL_{LOGGED}")
    if plain is None or aware is None or aware - plain <= PILED_UP_MS or f"LongYAAL_{REPAIRED}" not in means:
        return []
    return [
        f"computation adds {aware - plain:.0f} ms: a log of SimulEval adds all of the talk so far to every word; "
        "LongYAAL with repaired computation is without that"
    ]

"""The options of simultaneous translation, shared by SimulEval's agent and our commands."""

from __future__ import annotations

from argparse import Namespace
from typing import Any, Protocol

from ...support.errors import LeapformerError
from ..sentences import SentenceModel
from .policy import POLICIES, PolicyOptions
from .segments import HISTORIES, SEGMENTS, SegmentOptions
from .silence import SILENCE_DB
from .stream import EARLY_EOS, DecodingOptions
from .text import EMITTERS

LEAST_SENTENCE = 0.5  # seconds
ENGINES = ("auto", "incremental", "recompute")  # `engine.engine_for` knows them


class TakesOptions(Protocol):
    """An argparse parser, or an object that forwards to one."""

    def add_argument(self, option: str, /, **settings: Any) -> Any: ...


def add_system_options(parser: TakesOptions) -> None:
    """Add the options for the model, the policy, output limits and threads."""
    add = parser.add_argument
    add("--checkpoint", required=True, help="fairseq checkpoint, leapformer_simulst* or leapformer_s2t*; or a folder "
        "that `leapformer export` made, which needs no --data-root")  # fmt: skip
    add("--data-root", help="folder of the config yaml, as given to training")
    add("--config-yaml", default="config.yaml", help="data config in --data-root")
    add("--policy", choices=tuple(POLICIES), default="wait-k", help="when to write (default: wait-k)")
    add("--waitk-lagging", type=int, help="wait-k: k, in steps (default: the trained one; of a range the high end)")
    add("--catch-up", type=float, default=1.0, help="wait-k: tokens for each step after the first k (default: 1)")
    add("--hold", type=int, default=3, help="hold-n: tokens at the end that are held back (default: 3)")
    add("--agree", type=int, default=2, help="local-agreement: steps whose translations must agree (default: 2)")
    add(
        "--align-frames",
        type=int,
        default=4,
        help="alignatt: a token that attends most to one of the last states waits, of so many (default: 4)",
    )
    add("--align-layer", type=int, default=-1, help="alignatt, --history window: the decoder layer that is looked at, "
        "from 1, or from the last one backwards, from -1 (default: -1)")  # fmt: skip
    add(
        "--engine",
        choices=ENGINES,
        default="auto",
        help="encode arriving speech once, or all of it again at every read (default: once, where the encoder can)",
    )
    add("--pre-decision-ratio", type=int, help="encoder states (40 ms each) of a step (default: the trained one)")
    add("--max-draft", type=int, default=40, help="tokens that hold-n and local-agreement look ahead (default: 40)")
    add("--max-len-a", type=float, default=0.0, help="at most A * frames (10 ms) + B tokens: A")
    add("--max-len-b", type=int, default=200, help="at most A * frames (10 ms) + B tokens: B")
    add("--max-after-read", type=int, metavar="N", help="at most N tokens after the whole source was read")
    add("--no-repeat-ngram-size", type=int, default=0, metavar="N", help="no N tokens come twice in an utterance or "
        "segment, against models that repeat themselves (default: 0, no limit)")  # fmt: skip
    add("--unit", choices=tuple(EMITTERS), help="write words, or pieces at once (default: --eval-latency-unit)")
    add("--early-eos", choices=EARLY_EOS, default="mask", help="wait-k: end of sentence before that of the source:"
        " forbid it, or take it back and wait for more source")  # fmt: skip
    add("--silence-db", type=_decibels, default=SILENCE_DB, metavar="DB", help="what is quieter, in decibels of full "
        "scale, is no speech: neither before the first sound nor where pauses end a segment; off: audio begins with "
        f"its first sample, and pauses are only relative (default: {SILENCE_DB:g})")  # fmt: skip
    add("--lead-ms", type=int, metavar="MS", help="of silence before a sound that an utterance or segment begins with, "
        "as much as the recordings of the training do (default: live 0; of recordings up to a second, and 0 of longer "
        "silence)")  # fmt: skip
    add("--num-threads", type=int, default=1, help="CPU threads of torch; fixed, so that timings can be compared")


def add_segment_options(parser: TakesOptions) -> None:
    """Add the options for the end of a segment, for what is kept of it, and for what is carried over to the next."""
    add, default = parser.add_argument, SegmentOptions()
    add("--segment", choices=SEGMENTS, help="what ends a segment, at the latest when --max-seconds are kept in mind "
        f"(default: {default.kind}; with --history window seconds, with --sentence-ends sentence)")  # fmt: skip
    add("--sentence-ends", metavar="FILE", help="from `leapformer sentence-ends`: finds the ends of sentences, for "
        "speech without pauses")  # fmt: skip
    add("--history", choices=HISTORIES, default=default.history, help="what is kept in mind: the segment, or a window "
        "that forgets old text with its source, so that a talk needs no pauses and a segment no end (default: "
        f"{default.history})")  # fmt: skip
    add("--history-words", type=int, default=default.history_words, metavar="N", help="--history window: last words "
        f"that stay (--unit char: pieces; default: {default.history_words})")  # fmt: skip
    add("--pause-ms", type=int, default=default.pause_ms, help=f"a pause is so long (default: {default.pause_ms})")
    add("--pause-db", type=float, default=default.pause_db, help="and so much quieter than the loudest of the last "
        f"10 s (default: {default.pause_db:g})")  # fmt: skip
    add("--segment-tokens", type=int, default=default.tokens, metavar="N", help="--segment tokens: target tokens of a "
        f"segment (default: {default.tokens})")  # fmt: skip
    add("--min-seconds", type=float, metavar="S", help=f"of a segment (default: {default.min_seconds:g}; with "
        f"--segment sentence {LEAST_SENTENCE:g})")  # fmt: skip
    add("--max-seconds", type=float, default=default.max_seconds, metavar="S", help="of a segment (default: "
        f"{default.max_seconds:g})")  # fmt: skip
    add("--carry", choices=("none", "encoder"), default="none", help="what is carried over segments: nothing, or the "
        "encoder with what it has heard (default: none)")  # fmt: skip


def segment_options(args: Namespace) -> SegmentOptions:
    """The segment options. Raises LeapformerError for impossible numbers and incompatible options."""
    sentences = None if args.sentence_ends is None else SentenceModel.load(args.sentence_ends)
    unsaid = "sentence" if sentences else "seconds" if args.history == "window" else SegmentOptions.kind
    kind = args.segment or unsaid
    least = LEAST_SENTENCE if kind == "sentence" else SegmentOptions.min_seconds
    return SegmentOptions(
        kind=kind,
        pause_ms=args.pause_ms,
        pause_db=args.pause_db,
        tokens=args.segment_tokens,
        min_seconds=least if args.min_seconds is None else args.min_seconds,
        max_seconds=args.max_seconds,
        history=args.history,
        history_words=args.history_words,
        silence_db=args.silence_db,
        lead_ms=SegmentOptions.lead_ms if args.lead_ms is None else args.lead_ms,
        sentences=sentences,
    )


def policy_options(args: Namespace) -> PolicyOptions:
    """The policy. Raises LeapformerError for impossible numbers."""
    return PolicyOptions(
        args.policy, args.waitk_lagging, args.catch_up, args.hold, args.agree, args.align_frames, args.align_layer
    )


def decoding_options(args: Namespace) -> DecodingOptions:
    """The decoding options. Raises LeapformerError for impossible numbers and units."""
    if args.policy == "hold-n" and args.hold >= args.max_draft:
        raise LeapformerError(
            f"--hold {args.hold} of the --max-draft {args.max_draft} tokens looked ahead leaves none to write; give a "
            "larger --max-draft"
        )
    more = args.max_after_read, args.no_repeat_ngram_size, args.silence_db, args.lead_ms
    return DecodingOptions(args.max_len_a, args.max_len_b, args.max_draft, args.early_eos, _output_unit(args), *more)


def _decibels(text: str) -> float | None:
    """A level, or None for off."""
    return None if text == "off" else float(text)


def _output_unit(args: Namespace) -> str:
    """The unit of output: --unit, or by default the one in which SimulEval measures latency."""
    counted = getattr(args, "eval_latency_unit", None) or "word"
    if counted not in EMITTERS:
        raise LeapformerError(f"--eval-latency-unit {counted} is not supported; choose from {', '.join(EMITTERS)}")
    return args.unit or counted


def check_threads(count: int) -> None:
    """Raise LeapformerError for a number of threads below one."""
    if count < 1:
        raise LeapformerError(f"--num-threads is {count}; it must be at least 1")

"""The options of simultaneous translation, shared by SimulEval's agent and our commands."""

from __future__ import annotations

from argparse import Namespace

from ...support.errors import LeapformerError
from ...support.options import TakesOptions, add_options, choice
from ..sentences import SentenceModel
from .policy import POLICIES, PolicyOptions
from .segments import HISTORIES, SEGMENTS, SegmentOptions
from .silence import SILENCE_DB
from .stream import EARLY_EOS, DecodingOptions
from .text import EMITTERS

LEAST_SENTENCE = 0.5  # seconds
ENGINES = ("auto", "incremental", "recompute")  # `engine.engine_for` knows them

DEFAULT = SegmentOptions()
SYSTEM_OPTIONS = f"""
--checkpoint CHECKPOINT!  fairseq checkpoint, leapformer_simulst* or leapformer_s2t*; or a folder that `leapformer
                        export` made, which needs no --data-root
--data-root DATA_ROOT   folder of the config yaml, as given to training
--config-yaml CONFIG_YAML = config.yaml  data config in --data-root
--policy {choice(POLICIES)} = wait-k  when to write
--waitk-lagging K:int   wait-k: k, in steps (default: the trained one; of a range the high end)
--catch-up N:float = 1  wait-k: tokens for each step after the first k
--hold N:int = 3        hold-n: tokens at the end that are held back
--agree N:int = 2       local-agreement: steps whose translations must agree
--align-frames N:int = 4  alignatt: a token that attends most to one of the last states waits, of so many
--align-layer N:int = -1  alignatt, --history window: the decoder layer that is looked at, from 1, or from the last one
                        backwards, from -1
--engine {choice(ENGINES)} = auto  encode arriving speech once, or all of it again at every read (default: once, where
                        the encoder can)
--pre-decision-ratio N:int  encoder states (40 ms each) of a step (default: the trained one)
--max-draft N:int = 40  tokens that hold-n and local-agreement look ahead
--max-len-a A:float = 0  at most A * frames (10 ms) + B tokens
--max-len-b B:int = 200  at most A * frames (10 ms) + B tokens
--max-after-read N:int  at most N tokens after the whole source was read
--no-repeat-ngram-size N:int = 0  no N tokens come twice in an utterance or segment, against models that repeat
                        themselves (default: 0, no limit)
--unit {choice(EMITTERS)}  write words, or pieces at once (default: --eval-latency-unit)
--early-eos {choice(EARLY_EOS)} = mask  wait-k: end of sentence before that of the source: forbid it, or take it back
                        and wait for more source
--silence-db DB:float_or_off = {SILENCE_DB:g}  what is quieter, in decibels of full scale, is no speech: neither before
                        the first sound nor where pauses end a segment; off: audio begins with its first sample, and
                        pauses are only relative
--lead-ms MS:int        of silence before a sound that an utterance or segment begins with, as much as the recordings of
                        the training do (default: live 0; of recordings up to a second, and 0 of longer silence)
--num-threads N:int = 1  CPU threads of torch; fixed, so that timings can be compared
"""
SEGMENT_OPTIONS = f"""
--segment {choice(SEGMENTS)}  what ends a segment, at the latest when --max-seconds are kept in mind (default:
                        {DEFAULT.kind}; with --history window seconds, with --sentence-ends sentence)
--sentence-ends FILE    from `leapformer sentence-ends`: finds the ends of sentences, for speech without pauses
--history {choice(HISTORIES)} = {DEFAULT.history}  what is kept in mind: the segment, or a window that forgets old text
                        with its source, so that a talk needs no pauses and a segment no end
--history-words N:int = {DEFAULT.history_words}  --history window: last words that stay (--unit char: pieces)
--pause-ms MS:int = {DEFAULT.pause_ms}  a pause is so long
--pause-db DB:float = {DEFAULT.pause_db:g}  and so much quieter than the loudest of the last 10 s
--segment-tokens N:int = {DEFAULT.tokens}  --segment tokens: target tokens of a segment
--min-seconds S:float   of a segment (default: {DEFAULT.min_seconds:g}; with --segment sentence {LEAST_SENTENCE})
--max-seconds S:float = {DEFAULT.max_seconds:g}  of a segment
--carry (none|encoder) = none  what is carried over segments: nothing, or the encoder with what it has heard
"""


def add_system_options(parser: TakesOptions) -> None:
    """Add the options for the model, the policy, output limits and threads."""
    add_options(parser, SYSTEM_OPTIONS)


def add_segment_options(parser: TakesOptions) -> None:
    """Add the options for the end of a segment, for what is kept of it, and for what is carried over to the next."""
    add_options(parser, SEGMENT_OPTIONS)


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

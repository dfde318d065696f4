"""The options of simultaneous translation, shared by SimulEval's agent and our commands."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence

from ...support.declared import Option
from ...support.errors import LeapformerError
from ...support.options import TakesOptions, add_more_options, add_options, choice
from ..sentences import SentenceModel
from . import own
from .policy import ALIGN_LAYER, POLICIES, PolicyOptions, find
from .segments import HISTORIES, SEGMENTS, SegmentOptions
from .silence import SILENCE_DB
from .stream import EARLY_EOS, DecodingOptions
from .text import EMITTERS

LEAST_SENTENCE = 0.5  # seconds
ENGINES = ("auto", "incremental", "recompute")  # `engine.engine_for` knows them

DEFAULT = SegmentOptions()


def rows(options: Iterable[Option], listed: bool = False) -> str:
    """Declared options as lines of a table; `listed`: with a list of values each."""
    return "\n".join(_row(option, listed) for option in options)


def _row(option: Option, listed: bool) -> str:
    if option.type is bool and not listed:
        flag = option.flag.replace("--", "--[no-]", 1) if option.default else option.flag
        return f"{flag}  {option.help}"
    value = choice(option.choices) if option.choices and not listed else {int: "N", float: "X"}.get(option.type, "TEXT")
    kind = "" if listed or option.type is str else f":{option.type.__name__}"
    default = f"{option.default:g}" if isinstance(option.default, float) else option.default
    spec = f"{option.flag} {value}{'...' if listed else kind}" + ("" if default is None else f" = {default}")
    return f"{spec}  {' '.join(option.help.split())}"


SYSTEM_OPTIONS = f"""
--checkpoint CHECKPOINT!  fairseq checkpoint, leapformer_simulst* or leapformer_s2t*; or a folder that `leapformer
                        export` made, which needs no --data-root
--data-root DATA_ROOT   folder of the config yaml, as given to training
--config-yaml CONFIG_YAML = config.yaml  data config in --data-root
--policy NAME = wait-k  when to write: {", ".join(POLICIES)}, or one of your own
--policy-file FILE*     a Python file, or a package folder, that registers policies of your own; may be repeated
{rows(option for policy in POLICIES.values() for option in policy.options)}
{rows([ALIGN_LAYER])}
--engine {choice(ENGINES)} = auto  encode arriving speech once, or all of it again at every read (default: once, where
                        the encoder can)
--pre-decision-ratio N:int  encoder states (40 ms each) of a step (default: the trained one)
--max-draft N:int = 40  tokens that hold-n, local-agreement and shared-prefix look ahead
--beam N:int = 1        hypotheses of a beam search for these tokens, and for the rest after the end of the source
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


def add_system_options(parser: TakesOptions, words: Sequence[str] | None = None) -> None:
    """Add the options for the model, the policy, output limits and threads.

    `words` are those of the command, by default this process's, since they name the files with more policies. Raises
    LeapformerError for such files.
    """
    add_options(parser, SYSTEM_OPTIONS)
    add_more_options(parser, own_options(sys.argv[1:] if words is None else words))


def own_options(words: Sequence[str]) -> str:
    """The options of policies that the words of a command bring, as a table. Raises LeapformerError for their files."""
    return rows(own.options(words))


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
    """The policy.

    Raises LeapformerError for an unknown one, an impossible value, an option of another policy, and a --policy-file
    that fails.
    """
    for file in args.policy_file:
        own.load(file)
    declared = [*find(args.policy).options, ALIGN_LAYER]
    others = (option for policy in POLICIES.values() for option in policy.options)
    values = {option: getattr(args, stored(option), None) for option in (*declared, *others)}
    given = {option: value for option, value in values.items() if value not in (None, option.default)}
    check_unused([args.policy], {option.name: f"{option.flag} {value}" for option, value in given.items()})
    return PolicyOptions(args.policy, **{option.name: value for option, value in given.items()})


def check_unused(policies: Sequence[str], given: Mapping[str, str]) -> None:
    """Raise LeapformerError for options that none of these policies has.

    `given`: options with other values than their defaults, each by its name in Python and as the command has it.
    """
    used = {ALIGN_LAYER.name, *(option.name for name in policies for option in find(name).options)}
    for option, words in given.items():
        if option not in used:
            owners = [name for name, policy in POLICIES.items() if option in {one.name for one in policy.options}]
            raise LeapformerError(
                f"{words} is for the policy {' or '.join(owners)}, not for {', '.join(policies)}; leave it out, or "
                "choose that policy"
            )


def stored(option: Option) -> str:
    """The name under which the command line stores an option."""
    return option.flag.lstrip("-").replace("-", "_")


def decoding_options(args: Namespace) -> DecodingOptions:
    """The decoding options. Raises LeapformerError for impossible numbers and units."""
    if args.policy == "hold-n" and args.hold >= args.max_draft:
        raise LeapformerError(
            f"--hold {args.hold} of the --max-draft {args.max_draft} tokens looked ahead leaves none to write; give a "
            "larger --max-draft"
        )
    more = args.max_after_read, args.no_repeat_ngram_size, args.silence_db, args.lead_ms, args.beam
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

"""Run an exported model: translate or go on with lines of standard input, translate recordings, speak."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from ..support import ending
from ..support.errors import LeapformerError, explained
from ..support.lines import decoded, read_lines, waiting
from ..support.options import add_options, at_least, choice, parse
from ..support.progress import Watch, part_of, progress, unwatched
from .beam import Search
from .folder import RECORDINGS, SPEECH, SYNTHESIS, Folder
from .languages import marks_of
from .recordings import SpeechToText
from .translator import BATCH_TOKENS, EMPTY, Text, TooLong, Translator

SKIP, CUT = "skip", "cut"

SEARCH = """
folder DIR:path         an exported model; from or to speech: DIR --help tells more; or demo: the bundled one
--beam N:int = 5        hypotheses, or samples
--max-len-a A:float = 0  a target has at most A times as many subwords as
--max-len-b B:int = 200  its source, or as a recording has frames (10 ms), and B (default: 0 and 200)
--min-len N:int = 1     a target has at least so many subwords
--length-penalty, --lenpen X:float = 1
--unkpen X:float = 0    unknown words are less likely by this
--temperature X:float = 1  logits are divided by this
--no-repeat-ngram-size N:int = 0  no N subwords come twice in a target
--sampling              draw by chance, in place of beam search,
--sampling-topk N:int = 0  from the N likeliest subwords (0: from all)
--sampling-topp P:float = 0  or from the fewest that have this probability together
--seed N:int = 1        of sampling
--nbest N:int = 1       print so many hypotheses of each line or recording, one a line
--scores                print the score before each, and a tab
--threads N:int = 1
"""
OPTIONS = f"""
{SEARCH}
--source-lang, -s LANG  of a model of several languages
--target-lang, -t LANG
--alignments            print a tab behind each, and pairs of source and target subwords, as 0-0 1-1 (needs a folder
                         that was exported with --alignments)
--prefixes FILE         with what the translation of each line begins
--too-long {choice([SKIP, CUT])} = {SKIP}  a line that is too long gets an empty one, or that of its beginning;
                        of a prompt, its end
--batch-tokens N:int = {BATCH_TOKENS}  subwords that are translated together
--quiet                 no progress on standard error, which is shown on a terminal if the output goes elsewhere
"""
HEARING = f"""
{SEARCH}
audio FILE...           16 kHz mono recordings, each read as a whole
"""


def main(argv: list[str] | None = None) -> int:
    """Translate what is given, and return the exit status."""
    words, shown = ending.without_flag(sys.argv[1:] if argv is None else argv)
    return ending.status_of(lambda: _dispatch(words), explained, words, shown, "runtime")


def _dispatch(argv: list[str]) -> int:
    if argv[:1] == ["demo"] and not Path("demo").is_dir():
        return _demo(argv[1:])
    task = Folder.read(argv[0]).task if argv and not argv[0].startswith("-") else ""
    return {SPEECH: _speech, SYNTHESIS: _speaking, RECORDINGS: _recordings}.get(task, _text)(argv)


def _demo(argv: list[str]) -> int:
    """As `leapformer demo`."""
    from .commands import demo

    return demo.run(parse(demo, argv, "python -m leapformer_fairseq.runtime demo"))


def _speech(argv: list[str]) -> int:
    """As `leapformer stream`, whose options these are."""
    from .commands import stream

    return stream.run(parse(stream, ["--checkpoint", *argv], "python -m leapformer_fairseq.runtime DIR"))


def _speaking(argv: list[str]) -> int:
    """As `leapformer tts`, whose options these are."""
    from .commands import tts

    return tts.run(parse(tts, ["--path", *argv], "python -m leapformer_fairseq.runtime DIR"))


def _recordings(argv: list[str]) -> int:
    """What is said in each recording, a line each. One that cannot be read gets an empty line, and a message."""
    args, search = _options(HEARING, argv)
    search.check(args.nbest)
    model, seed, refused = SpeechToText(args.folder, args.threads), np.random.default_rng(args.seed), 0
    for recording in args.audio:
        try:
            _print(model.texts(recording, nbest=args.nbest, search=search, seed=seed), args.scores)
        except LeapformerError as error:
            ending.say(f"runtime: {error}; its text is empty")
            refused += 1
            _print([EMPTY], args.scores)
    return 1 if refused else 0


def _options(table: str, argv: list[str]) -> tuple[argparse.Namespace, Search]:
    """The options of a table with `SEARCH`, and what they say of the search."""
    parser = ending.Parser(prog="python -m leapformer_fairseq.runtime", description=__doc__)
    add_options(parser, table, {})
    args = parser.parse_args(argv)
    at_least(1, beam=args.beam, nbest=args.nbest, threads=args.threads)
    at_least(0, min_len=args.min_len, no_repeat_ngram_size=args.no_repeat_ngram_size, seed=args.seed)
    return args, Search(
        args.beam,
        args.max_len_a,
        args.max_len_b,
        args.min_len,
        args.length_penalty,
        args.unkpen,
        args.temperature,
        args.no_repeat_ngram_size,
        args.sampling,
        args.sampling_topk,
        args.sampling_topp,
    )


def _print(found: list[Text], scores: bool, alignments: bool = False) -> None:
    for one in found:
        score, pairs = f"{one.score:.4f}", " ".join(f"{source}-{place}" for source, place in one.alignment)
        text = one.text.replace("\n", " ")  # bytes of GPT-2's may be any
        print(*[score] * scores, text, *[pairs] * alignments, sep="\t", flush=True)


def _text(argv: list[str]) -> int:
    """Standard input, line by line: sources to translate, or prompts.

    A line that cannot be read gets an empty one, and a message; the status is then 1.
    """
    args, search = _options(OPTIONS, argv)
    at_least(1, batch_tokens=args.batch_tokens)
    translator = Translator(args.folder, args.threads)
    marks_of(translator.folder, args.source_lang, args.target_lang)  # before anything is read
    shown = sys.stderr.isatty() and not (args.quiet or sys.stdout.isatty())
    with progress("runtime", "line") if shown else nullcontext(unwatched) as watch:
        return _translate(translator, search, args, watch, _line_count(sys.stdin.buffer) if shown else 0)


def _translate(translator: Translator, search: Search, args: argparse.Namespace, watch: Watch, total: int) -> int:
    prefixes = iter(() if args.prefixes is None else read_lines(args.prefixes, "--prefixes"))
    read, refused, unknown = 0, 0, Counter[str]()
    options: dict[str, Any] = {"search": search, "nbest": args.nbest, "batch_tokens": args.batch_tokens}
    options |= {"source": args.source_lang, "target": args.target_lang, "alignments": args.alignments}
    options["seed"] = np.random.default_rng(args.seed)
    stdin: Any = sys.stdin.buffer  # which typeshed declares without read1
    for some in waiting(stdin):
        lines = [_pieces(translator, search, line, read + i, args.too_long) for i, line in enumerate(some, 1)]
        begins = [next(prefixes, "") for _ in lines] if args.prefixes else []
        readable = [pieces for pieces in lines if pieces is not None]
        begins = [begin for begin, pieces in zip(begins, lines, strict=False) if pieces is not None]
        unknown.update(piece for pieces in readable for piece in translator.unknown(pieces))
        done = read + lines.count(None)
        watch(done, total)
        found = translator.translate(readable, prefixes=begins, watch=part_of(watch, done, total), **options)
        for pieces in lines:
            _print([EMPTY] if pieces is None else next(found), args.scores, args.alignments)
        read, refused = read + len(lines), refused + lines.count(None)
    if unknown:
        few = " ".join(piece for piece, _ in unknown.most_common(5))
        ending.say(f"runtime: {unknown.total()} subwords are not in the model's vocabulary, most often: {few}")
    return 1 if refused else 0


def _pieces(translator: Translator, search: Search, line: bytes, number: int, too_long: str) -> list[str] | None:
    """The subwords of a line; None, and a message, if it cannot be read."""
    try:
        (text,) = decoded([line], "standard input", number)
        return translator.pieces(text, f"standard input, line {number}: ", search)
    except LeapformerError as error:
        if too_long == CUT and isinstance(error, TooLong):
            ending.say(f"runtime: {error}; {len(error.readable)} of them are read")
            return error.readable
        ending.say(f"runtime: {error}; its translation is empty")
        return None


def _line_count(stream: Any) -> int:
    """The lines of a file from where it is read; 0 for a stream that cannot be read again, such as a pipe."""
    try:
        start = stream.tell()
        count = sum(1 for _ in stream)
        stream.seek(start)
    except OSError:
        return 0
    return count


if __name__ == "__main__":
    sys.exit(main())

"""Run an exported model: translate or go on with lines of standard input, translate recordings while heard, speak."""

from __future__ import annotations

import sys
from pathlib import Path

from ..support import ending
from ..support.errors import LeapformerError, explained
from ..support.lines import decoded
from .beam import Search, go_on, translate
from .engine import Graphs
from .folder import LANGUAGE, SPEECH, SYNTHESIS, Folder
from .text import subwords_of


def main(argv: list[str] | None = None) -> int:
    """Translate what is given, and return the exit status."""
    words, shown = ending.without_flag(sys.argv[1:] if argv is None else argv)
    return ending.status_of(lambda: _dispatch(words), explained, words, shown, "runtime")


def _dispatch(argv: list[str]) -> int:
    if argv[:1] == ["demo"] and not Path("demo").is_dir():
        return _demo(argv[1:])
    task = Folder.read(argv[0]).task if argv and not argv[0].startswith("-") else ""
    return {SPEECH: _speech, SYNTHESIS: _speaking}.get(task, _text)(argv)


def _demo(argv: list[str]) -> int:
    """As `leapformer demo`."""
    from .commands import demo

    parser = ending.Parser(prog="python -m leapformer_fairseq.runtime demo", description=demo.HELP)
    demo.add_arguments(parser)
    return demo.run(parser.parse_args(argv))


def _speech(argv: list[str]) -> int:
    """As `leapformer stream`, whose options these are."""
    from .commands import stream

    parser = ending.Parser(prog="python -m leapformer_fairseq.runtime DIR", description=stream.HELP)
    stream.add_arguments(parser)
    return stream.run(parser.parse_args(["--checkpoint", *argv]))


def _speaking(argv: list[str]) -> int:
    """As `leapformer tts`, whose options these are."""
    from .commands import tts

    parser = ending.Parser(prog="python -m leapformer_fairseq.runtime DIR", description=tts.HELP)
    tts.add_arguments(parser)
    return tts.run(parser.parse_args(["--path", *argv]))


def _text(argv: list[str]) -> int:
    """Standard input, line by line: sources to translate, or prompts."""
    parser = ending.Parser(prog="python -m leapformer_fairseq.runtime", description=__doc__)
    add = parser.add_argument
    add(
        "folder",
        metavar="DIR",
        type=Path,
        help="an exported model; from or to speech: DIR --help tells more; or demo: the bundled one",
    )
    add("--beam", type=int, default=5, metavar="N", help="hypotheses (default: %(default)s)")
    add("--max-len-a", type=float, default=0.0, metavar="A", help="a target has at most A times as many subwords as")
    add("--max-len-b", type=int, default=200, metavar="B", help="its source, and B (default: 0 and 200)")
    add("--length-penalty", type=float, default=1.0, metavar="X", help="(default: %(default)s)")
    add("--threads", type=int, default=1, metavar="N", help="(default: %(default)s)")
    args = parser.parse_args(argv)
    if args.beam < 1:
        raise LeapformerError(f"--beam {args.beam}: give at least 1")
    options = Search(args.beam, args.max_len_a, args.max_len_b, penalty=args.length_penalty)
    graphs = Graphs(Folder.read(args.folder), args.threads)
    cut, joined = subwords_of(graphs.folder)
    vocabularies = graphs.folder.vocabularies
    for line in decoded(sys.stdin.buffer, "standard input"):
        pieces = cut(line.strip())
        if graphs.folder.task == LANGUAGE:  # which may begin with nothing
            hypotheses = go_on(graphs, vocabularies["target"].numbers(pieces)[:-1], options)
        elif not pieces:  # there is nothing to translate, and the model would write words
            hypotheses = []
        else:
            hypotheses = translate(graphs, vocabularies["source"].numbers(pieces), options)
        print(joined(vocabularies["target"].words(hypotheses[0].tokens)) if hypotheses else "", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Run an exported model: translate or go on with lines of standard input, translate recordings while heard, speak."""

from __future__ import annotations

import sys
from pathlib import Path

from ..support import ending
from ..support.errors import explained
from ..support.lines import decoded
from ..support.options import add_options, at_least, parse
from .beam import Search, go_on, translate
from .engine import Graphs
from .folder import LANGUAGE, SPEECH, SYNTHESIS, Folder
from .text import subwords_of

OPTIONS = """
folder DIR:path         an exported model; from or to speech: DIR --help tells more; or demo: the bundled one
--beam N:int = 5        hypotheses
--max-len-a A:float = 0  a target has at most A times as many subwords as
--max-len-b B:int = 200  its source, and B (default: 0 and 200)
--length-penalty X:float = 1
--threads N:int = 1
"""


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

    return demo.run(parse(demo, argv, "python -m leapformer_fairseq.runtime demo"))


def _speech(argv: list[str]) -> int:
    """As `leapformer stream`, whose options these are."""
    from .commands import stream

    return stream.run(parse(stream, ["--checkpoint", *argv], "python -m leapformer_fairseq.runtime DIR"))


def _speaking(argv: list[str]) -> int:
    """As `leapformer tts`, whose options these are."""
    from .commands import tts

    return tts.run(parse(tts, ["--path", *argv], "python -m leapformer_fairseq.runtime DIR"))


def _text(argv: list[str]) -> int:
    """Standard input, line by line: sources to translate, or prompts."""
    parser = ending.Parser(prog="python -m leapformer_fairseq.runtime", description=__doc__)
    add_options(parser, OPTIONS, {})
    args = parser.parse_args(argv)
    at_least(1, beam=args.beam)
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

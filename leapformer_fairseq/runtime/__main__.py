"""Run an exported model: translate or go on with lines of standard input, translate recordings while heard, speak."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

from ..support import ending
from ..support.errors import LeapformerError, explained
from ..support.lines import decoded, read_lines, waiting
from ..support.options import add_options, at_least, parse
from .beam import Search
from .folder import SPEECH, SYNTHESIS, Folder
from .languages import marks_of
from .translator import BATCH_TOKENS, Translator

OPTIONS = f"""
folder DIR:path         an exported model; from or to speech: DIR --help tells more; or demo: the bundled one
--beam N:int = 5        hypotheses
--max-len-a A:float = 0  a target has at most A times as many subwords as
--max-len-b B:int = 200  its source, and B (default: 0 and 200)
--length-penalty X:float = 1
--source-lang, -s LANG  of a model of several languages
--target-lang, -t LANG
--nbest N:int = 1       print so many hypotheses of each line, one a line
--scores                print the score before each, and a tab
--prefixes FILE         with what the translation of each line begins
--batch-tokens N:int = {BATCH_TOKENS}  subwords that are translated together
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
    """Standard input, line by line: sources to translate, or prompts.

    A line that cannot be read gets an empty one, and a message; the status is then 1.
    """
    parser = ending.Parser(prog="python -m leapformer_fairseq.runtime", description=__doc__)
    add_options(parser, OPTIONS, {})
    args = parser.parse_args(argv)
    at_least(1, beam=args.beam, nbest=args.nbest, batch_tokens=args.batch_tokens)
    search = Search(args.beam, args.max_len_a, args.max_len_b, penalty=args.length_penalty)
    translator = Translator(args.folder, args.threads)
    languages = {"source": args.source_lang, "target": args.target_lang}
    marks_of(translator.folder, **languages)  # before anything is read
    prefixes = iter(() if args.prefixes is None else read_lines(args.prefixes, "--prefixes"))
    read, refused, unknown = 0, 0, Counter[str]()
    stdin: Any = sys.stdin.buffer  # which typeshed declares without read1
    for some in waiting(stdin):
        lines = list[list[str]]()
        for line in some:
            read += 1
            try:
                (text,) = decoded([line], "standard input", read)
                pieces = translator.pieces(text, f"standard input, line {read}: ")
            except LeapformerError as error:
                ending.say(f"runtime: {error}; its translation is empty")
                pieces, refused = [], refused + 1
            lines.append(pieces)
            unknown.update(translator.unknown(pieces))
        begins = [next(prefixes, "") for _ in lines] if args.prefixes else []
        options: dict[str, Any] = {"nbest": args.nbest, "prefixes": begins, "batch_tokens": args.batch_tokens}
        options |= languages
        for found in translator.translate(lines, search=search, **options):
            for one in found:
                print(f"{one.score:.4f}\t{one.text}" if args.scores else one.text, flush=True)
    if unknown:
        few = " ".join(piece for piece, _ in unknown.most_common(5))
        ending.say(f"runtime: {unknown.total()} subwords are not in the model's vocabulary, most often: {few}")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())

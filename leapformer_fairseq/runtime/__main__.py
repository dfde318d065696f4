"""`python -m leapformer_fairseq.runtime DIR < text`: translate lines with an exported model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from ..errors import LeapformerError, one_line
from .beam import Search, search
from .engine import Engine
from .folder import SUBWORDS, Folder


def main(argv: list[str] | None = None) -> int:
    """Translate standard input line by line; 2 for a user's error."""
    parser = argparse.ArgumentParser(prog="python -m leapformer_fairseq.runtime", description=__doc__)
    add = parser.add_argument
    add("folder", metavar="DIR", type=Path, help="made by `leapformer export`")
    add("--beam", type=int, default=5, metavar="N", help="hypotheses (default: %(default)s)")
    add("--max-len-a", type=float, default=0.0, metavar="A", help="a target has at most A times as many subwords as")
    add("--max-len-b", type=int, default=200, metavar="B", help="its source, and B (default: 0 and 200)")
    add("--length-penalty", type=float, default=1.0, metavar="X", help="(default: %(default)s)")
    add("--threads", type=int, default=1, metavar="N", help="(default: %(default)s)")
    args = parser.parse_args(argv)
    try:
        if args.beam < 1:
            raise LeapformerError(f"--beam {args.beam}: give at least 1")
        options = Search(args.beam, args.max_len_a, args.max_len_b, penalty=args.length_penalty)
        engine = Engine(Folder.read(args.folder), args.threads)
        cut, joined = _subwords(args.folder)
        for line in sys.stdin:
            source = engine.folder.vocabularies["source"].numbers(cut(line.strip()))
            found = search(engine, source, options)
            print(joined(engine.folder.vocabularies["target"].words(found[0].tokens)) if found else "", flush=True)
    except LeapformerError as error:
        print(f"runtime: error: {one_line(error)}", file=sys.stderr)
        return 2
    return 0


def _subwords(folder: Path) -> tuple[Callable[[str], list[str]], Callable[[list[str]], str]]:
    """How text is cut into subwords and put together; without a model text is subwords already."""
    path = folder / SUBWORDS
    if not path.is_file():
        return str.split, " ".join
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return model.encode_as_pieces, model.decode_pieces


if __name__ == "__main__":
    sys.exit(main())

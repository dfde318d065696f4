"""`leapformer sparsefinder`: predict the sparse graph of an entmax teacher, and measure its cost and savings."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..support.errors import LeapformerError
from ..support.files import make_folder, write_json, write_text
from ..support.progress import progress
from . import calls

if TYPE_CHECKING:
    from ..studies.sparsefinder.quality import Scored
    from ..studies.sparsefinder.study import Blocks, Pareto

HELP = "sparse attention that is predicted: extract a teacher's graphs, fit, evaluate, and draw all curves"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the steps as sub-commands."""
    steps = parser.add_subparsers(metavar="STEP", required=True, dest="step")
    for name, (add, help_text, _) in STEPS.items():
        step = steps.add_parser(name, help=help_text, description=help_text)
        add(step)


@calls.owning
def run(args: argparse.Namespace) -> int:
    """Run a step. Raises LeapformerError for unsuitable input; finished work is kept."""
    return STEPS[args.step][2](args) or 0


# ------------------------------------------------------------------------------------------------------------- extract
def _extract_arguments(parser: argparse.ArgumentParser) -> None:
    _add_teacher(parser)
    _add(parser, "block", "BLOCK", "encoder-self, decoder-self or decoder-cross", required=True)
    _add(parser, "out", "DIR", "for the graphs; the same command resumes there", required=True)
    _add(parser, "subset", "NAME", "of the data", "train")
    _add(parser, "sentences", "N", "how many", 1000)
    _add(parser, "min-length", "N", "leave out sentences of fewer tokens, the mark of the end among them", 21)
    _add(parser, "seed", "N", "of the choice of sentences", 1)


def _extract(args: argparse.Namespace) -> None:
    from ..studies.sparsefinder.extraction import Request, extract

    request = Request(args.data, args.block, args.subset, args.sentences, args.min_length, args.seed)
    with progress("extract", "sentence") as watch:
        graphs = extract(args.path, request, args.out, watch)
    print(f"{len(graphs)} sentences of {args.block} in {graphs.folder}")


# ----------------------------------------------------------------------------------------------------------------- fit
def _fit_arguments(parser: argparse.ArgumentParser) -> None:
    from ..studies.sparsefinder.fitting import LOSSES, PROJECTIONS, Settings

    defaults = Settings()
    parser.add_argument("graphs", metavar="GRAPHS", help="a folder of `leapformer sparsefinder extract`")
    _add(parser, "out", "DIR", "for seed1.pt, ...; finished ones are kept", required=True)
    _add(parser, "seeds", "N", "", [1, 2, 3])
    for name, help_text in (
        ("dimensions", "dimensions r to which queries and keys are projected"),
        ("margin", "margin of the loss"),
        ("lr", "learning rate of Adam"),
        ("l2", "weight decay"),
        ("batch", "sentences of an update"),
        ("epochs", "passes over the sentences"),
        ("clip", "largest norm of the gradient"),
        ("part", "share of the sentences to fit to; the rest is for evaluation"),
        ("points", "queries and keys of a head that are clustered; 0: all"),
    ):
        _add(parser, name, "X", help_text, getattr(defaults, name))
    text = "fit sparsefinder-block1 and -block2, too, for blocks of so many tokens"
    parser.add_argument("--blocks", type=int, nargs="+", default=[], metavar="Z", help=text)
    text = "of each edge and one other key (triple, the paper), or of sums per query (query, the released code)"
    parser.add_argument("--loss", choices=LOSSES, default=defaults.loss, help=text)
    text = "one for queries and keys (shared, the paper), or one each (separate, the released code)"
    parser.add_argument("--projections", choices=PROJECTIONS, default=defaults.projections, help=text)
    _add_jobs(parser, "seeds")


def _fit(args: argparse.Namespace) -> int:
    from dataclasses import fields

    from ..studies.sparsefinder.extraction import Graphs
    from ..studies.sparsefinder.fitting import Settings, parameter_count
    from ..studies.sparsefinder.study import Fit

    graphs = Graphs(args.graphs)
    options = {field.name: getattr(args, field.name) for field in fields(Settings)}
    settings = Settings(**{**options, "blocks": tuple(args.blocks)})
    state, status = calls.run_study(Fit(graphs, settings, args.seeds, Path(args.out)), args, "fit", "seed")
    per_head, heads = parameter_count(graphs, settings), graphs.about["heads"]
    if state.results:
        print(
            f"{len(state.results)} seeds in {args.out}; {per_head} parameters per head, {per_head * heads:,} per layer "
            f"of {heads} heads"
        )
    return status


# ------------------------------------------------------------------------------------------------------------ evaluate
def _evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    _add_pattern(parser)
    _add_quality(parser)


def _evaluate(args: argparse.Namespace) -> None:
    from ..studies.sparsefinder.experiments import evaluate
    from ..studies.sparsefinder.extraction import Graphs
    from ..studies.sparsefinder.grids import Point, read_options
    from ..studies.sparsefinder.sweep import Sweep, evaluated, gold_sparsity

    graphs = Graphs(args.graphs)
    point = Point(args.mechanism, read_options(args.mechanism, args.options))
    sweep = Sweep([point], [args.window], args.ends, args.fitted)
    sentences = evaluated(graphs, args.fitted, args.sentences)
    rows = []
    for row in evaluate(graphs, sweep, sentences, _test(args, graphs)):
        rows.append(row)
        print("  ".join(f"{name} {value:.4f}" for name, value in row.items() if isinstance(value, float)))
    content = {"rows": rows, "gold_sparsity": gold_sparsity(graphs, sentences), "sentences": len(sentences)}
    write_json(make_folder(args.out) / "evaluate.json", {**_about(args), **content}, "--out")


# -------------------------------------------------------------------------------------------------------------- pareto
def _pareto_arguments(parser: argparse.ArgumentParser) -> None:
    _add_graphs(parser)
    _add_global(parser)
    _add(parser, "grid", "NAME", "section5 or c2 of the paper, union of both and of what was released, small", "union")
    _add(parser, "mechanisms", "NAME", "(default: all patterns that serve the block)", nargs="+")
    _add(parser, "windows", "W", "(default: those of the paper for the block)", nargs="+", type=int)
    _add(parser, "quality-points", "N", "with --data: score this many points of each pattern, along its front", 12)
    _add_set(
        parser, "an option for all patterns that have it, as in sparsefinder_distance=squared or sparsefinder_nearest=2"
    )
    _add(parser, "note", "TEXT", "a line above the tables")
    _add_quality(parser)
    _add_jobs(parser, "points")


def _pareto(args: argparse.Namespace) -> int:
    from ..studies.sparsefinder.extraction import Graphs
    from ..studies.sparsefinder.grids import patterns, points, windows_of, with_options
    from ..studies.sparsefinder.study import Pareto
    from ..studies.sparsefinder.sweep import Sweep

    graphs = Graphs(args.graphs)
    block = graphs.about["block"]
    chosen = [with_options(point, args.options) for point in points(args.grid, args.mechanisms or patterns(), block)]
    sweep = Sweep(chosen, args.windows or windows_of(block), args.ends, args.fitted)
    numbers = (args.sentences, args.quality_points, args.note)
    study = Pareto(Path(args.out), sweep, _test(args, graphs), _about(args), graphs, *numbers)
    return _run_scoring(study, args, "pareto")


def _run_scoring(study: Pareto | Blocks, args: argparse.Namespace, title: str) -> int:
    _, status = calls.run_study(study, args, title, "point")
    if study.text:
        print(study.text)
    return status


# -------------------------------------------------------------------------------------------------------------- blocks
def _blocks_arguments(parser: argparse.ArgumentParser) -> None:
    _add_teacher(parser)
    _add(parser, "fitted", "FILE", "a file of `leapformer sparsefinder fit --blocks 2 4 8 16`")
    _add(parser, "out", "DIR", "for the results; the same command resumes there", required=True)
    _add(parser, "grid", "NAME", "union, the paper's, or small", "union")
    _add(parser, "mechanisms", "NAME", "", ["sparsefinder-block1", "sparsefinder-block2", "entmax-bigbird-blocks"])
    _add(parser, "subset", "NAME", "of the data", "test")
    _add(parser, "limit", "N", "score at most N samples", 500)
    _add(parser, "batch", "N", "samples of a batch", 8)
    calls.add_study_options(parser, "points")


def _blocks(args: argparse.Namespace) -> int:
    from ..studies.sparsefinder.grids import block_points
    from ..studies.sparsefinder.quality import Scored
    from ..studies.sparsefinder.study import Blocks
    from ..studies.sparsefinder.sweep import Sweep

    sweep = Sweep(block_points(args.grid, args.mechanisms), [0], "none", [args.fitted] if args.fitted else [])
    test = Scored(args.path, args.data, "encoder-self", args.subset, batch=args.batch, limit=args.limit)
    return _run_scoring(Blocks(Path(args.out), sweep, test, _about(args)), args, "blocks")


# ---------------------------------------------------------------------------------------------------------------- draw
def _draw_arguments(parser: argparse.ArgumentParser) -> None:
    _add_pattern(parser)
    _add(parser, "sentence", "N", "index among the sentences held out from the fit, from 0", 0)
    _add(parser, "layer", "N", "from 1 (default: all)", type=int)
    _add(parser, "head", "N", "from 0 (default: all)", type=int)
    _add(parser, "most", "N", "tokens, at most", 40)


def _draw_graphs(args: argparse.Namespace) -> None:
    from ..studies.sparsefinder.experiments import draw_graphs
    from ..studies.sparsefinder.extraction import Graphs
    from ..studies.sparsefinder.grids import Point, read_options
    from ..studies.sparsefinder.sweep import evaluated, mechanisms

    graphs = Graphs(args.graphs)
    sentences = evaluated(graphs, args.fitted, args.sentences)
    for option, value, first, count in (
        ("--sentence", args.sentence, 0, len(sentences)),
        ("--layer", args.layer, 1, len(graphs.about["fingerprints"])),
        ("--head", args.head, 0, graphs.about["heads"]),
    ):
        if value is not None and not first <= value < first + count:
            raise LeapformerError(f"{option} {value}: choose from {first} to {first + count - 1}")
    folder = make_folder(args.out)
    point = Point(args.mechanism, {**read_options(args.mechanism, args.options), "sparse_window": args.window})
    layers = dict(enumerate(mechanisms(graphs, point, args.ends, args.fitted, 0)))
    if args.layer is not None:
        layers = {args.layer - 1: layers[args.layer - 1]}
    heads = range(graphs.about["heads"]) if args.head is None else (args.head,)
    draw_graphs(graphs, sentences[args.sentence], layers, heads, args.most, folder, point.name)
    print(f"{len(layers) * len(heads)} pictures in {folder}")


# ---------------------------------------------------------------------------------------------------------------- tags
def _tags_arguments(parser: argparse.ArgumentParser) -> None:
    _add_graphs(parser)
    source = parser.add_mutually_exclusive_group()
    text = "a word, a tab and its tag on each line, and an empty line after each sentence, for the lines of text.txt"
    source.add_argument("--tags", metavar="FILE", help=f"{text}, which the command writes to --out")
    source.add_argument("--spacy", metavar="PIPELINE", help="tag with this installed pipeline, as en_core_web_sm")
    _add(parser, "centroids", "N", "of each head, as fitted", 8)
    _add(parser, "most", "N", "tags; rarer ones are joined", 12)
    _add(parser, "vocabulary", "DIR", "where subwords are numbers: the folder with encoder.json and vocab.bpe")


def _tags(args: argparse.Namespace) -> None:
    from ..studies.sparsefinder import tags
    from ..studies.sparsefinder.extraction import Graphs
    from ..studies.sparsefinder.pictures import draw_tags
    from ..studies.sparsefinder.sweep import evaluated

    graphs, folder = Graphs(args.graphs), make_folder(args.out)
    if len(args.fitted) != 1:
        raise LeapformerError(f"--fitted: {len(args.fitted)} files; give one file of `leapformer sparsefinder fit`")
    sentences = evaluated(graphs, args.fitted, args.sentences)
    lines = tags.texts(sentences, args.vocabulary)
    write_text(folder / "text.txt", "".join(line + "\n" for line in lines), "--out")
    if not args.tags and not args.spacy:
        print(f"{len(lines)} sentences in {folder / 'text.txt'}; tag them, and give the result as --tags")
        return
    words = tags.read_tags(args.tags) if args.tags else tags.tag_with_spacy(lines, args.spacy)
    tagged = tags.tags_of_subwords(sentences, words, args.vocabulary)
    buckets = tags.Buckets(graphs, args.fitted[0], args.centroids, tags.most_frequent(tagged, args.most))
    with progress("tags", "sentence") as watch:
        for i, (sentence, tags_of_sentence) in enumerate(zip(sentences, tagged, strict=True), 1):
            buckets.add(sentence, tags_of_sentence)
            watch(i, len(sentences))
    print(tags.write_tags(buckets, folder, draw_tags))


# -------------------------------------------------------------------------------------------------------------- shared
def _add(parser: argparse.ArgumentParser, name: str, metavar: str, text: str, default: Any = None, **more: Any) -> None:
    """Add an option of the type of its default, if it has one; then the help ends with it. A list takes several."""
    if default is not None:
        first, shown = (default[0], " ".join(map(str, default))) if isinstance(default, list) else (default, default)
        more |= {"type": type(first), "default": default, **({"nargs": "+"} if isinstance(default, list) else {})}
        text = f"{text} (default: {shown})".strip()
    parser.add_argument(f"--{name}", metavar=metavar, help=text, **more)


def _add_set(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", dest="options", help=text)


def _add_teacher(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", help="the folder of binary data")
    _add(parser, "path", "CHECKPOINT", "the teacher: a model with entmax attention", required=True)


def _add_pattern(parser: argparse.ArgumentParser) -> None:
    _add_graphs(parser)
    _add_global(parser)
    _add(parser, "mechanism", "NAME", "a pattern, as sparsefinder-distance", required=True)
    _add_set(parser, "its options, as in sparsefinder_threshold=1.5")
    _add(parser, "window", "W", "an odd number, or 0 for none", 0)


def _add_graphs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("graphs", metavar="GRAPHS", help="a folder of `leapformer sparsefinder extract`")
    text = "the files of `leapformer sparsefinder fit`, one for each seed"
    parser.add_argument("--fitted", nargs="+", default=[], metavar="FILE", help=text)
    _add(parser, "out", "DIR", "for the results; the same command resumes there", required=True)
    _add(parser, "sentences", "N", "measure at most N (default: all that were not fitted to)", type=int)


def _add_global(parser: argparse.ArgumentParser) -> None:
    text = "tokens with all edges, in every pattern (default: first)"
    parser.add_argument("--global", choices=("none", "first", "both"), default="first", dest="ends", help=text)


def _add_quality(parser: argparse.ArgumentParser) -> None:
    _add(parser, "data", "DATA", "also score perplexity or BLEU on this folder of binary data")
    _add(parser, "subset", "NAME", "of --data", "test")
    _add(parser, "references", "FILE", "for BLEU: a detokenised line for each sentence")
    _add(parser, "limit", "N", "score at most N sentences (default: all)", type=int)


def _add_jobs(parser: argparse.ArgumentParser, cells: str) -> None:
    _add(parser, "jobs", "N", f"{cells} at once, one thread each", 1)
    calls.add_study_options(parser, cells)


def _test(args: argparse.Namespace, graphs: Any) -> Scored | None:
    from ..studies.sparsefinder.quality import Scored

    if args.data is None:
        return None
    about, long = graphs.about, graphs.about["min_length"]  # sentences as long as those of the graphs are scored apart
    test = args.subset, args.references
    return Scored(about["teacher"], args.data, about["block"], *test, limit=args.limit, long=long)


def _about(args: argparse.Namespace) -> dict[str, Any]:
    """What a file of results begins with."""
    from ..support.signature import environment, signature

    options = {name: value for name, value in vars(args).items() if name not in ("run", "jobs", "dry_run", "only")}
    return {"signature": signature(), "environment": environment(), "options": options}


STEPS = {
    "extract": (_extract_arguments, "write a teacher's queries, keys and graphs to disk", _extract),
    "fit": (_fit_arguments, "fit projections and centroids to them", _fit),
    "evaluate": (_evaluate_arguments, "sparsity, recall and quality of one pattern", _evaluate),
    "draw": (_draw_arguments, "a predicted graph and its attention, head by head, with the gold edges", _draw_graphs),
    "tags": (_tags_arguments, "parts of speech in the buckets of sparsefinder-kmeans", _tags),
    "blocks": (_blocks_arguments, "seconds and perplexity of a masked language model over chosen blocks", _blocks),
    "pareto": (_pareto_arguments, "all patterns of a grid: tables and curves", _pareto),
}

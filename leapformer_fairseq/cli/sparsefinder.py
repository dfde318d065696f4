"""`leapformer sparsefinder`: predict the sparse graph of an entmax model. A teacher's graphs are extracted, fitted,
evaluated and drawn.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..studies.sparsefinder.fitting import LOSSES, PROJECTIONS, Settings
from ..support.errors import LeapformerError
from ..support.files import make_folder, write_json, write_text
from ..support.options import Step, choice
from ..support.progress import progress
from . import calls

if TYPE_CHECKING:
    from ..studies.sparsefinder.quality import Scored
    from ..studies.sparsefinder.study import Blocks, Pareto

STEP = "STEP"
DEFAULT = Settings()


# ------------------------------------------------------------------------------------------------------------- extract
def _extract(args: Namespace) -> None:
    from ..studies.sparsefinder.extraction import Request, extract

    request = Request(args.data, args.block, args.subset, args.sentences, args.min_length, args.seed)
    with progress("extract", "sentence") as watch:
        graphs = extract(args.path, request, args.out, watch)
    print(f"{len(graphs)} sentences of {args.block} in {graphs.folder}")


# ----------------------------------------------------------------------------------------------------------------- fit
def _fit(args: Namespace) -> int:
    from dataclasses import fields

    from ..studies.sparsefinder.extraction import Graphs
    from ..studies.sparsefinder.fitting import parameter_count
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
def _evaluate(args: Namespace) -> None:
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
def _pareto(args: Namespace) -> int:
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


def _run_scoring(study: Pareto | Blocks, args: Namespace, title: str) -> int:
    _, status = calls.run_study(study, args, title, "point")
    if study.text:
        print(study.text)
    return status


# -------------------------------------------------------------------------------------------------------------- blocks
def _blocks(args: Namespace) -> int:
    from ..studies.sparsefinder.grids import block_points
    from ..studies.sparsefinder.quality import Scored
    from ..studies.sparsefinder.study import Blocks
    from ..studies.sparsefinder.sweep import Sweep

    sweep = Sweep(block_points(args.grid, args.mechanisms), [0], "none", [args.fitted] if args.fitted else [])
    test = Scored(args.path, args.data, "encoder-self", args.subset, batch=args.batch, limit=args.limit)
    return _run_scoring(Blocks(Path(args.out), sweep, test, _about(args)), args, "blocks")


# ---------------------------------------------------------------------------------------------------------------- draw
def _draw_graphs(args: Namespace) -> None:
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
def _tags(args: Namespace) -> None:
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
def _test(args: Namespace, graphs: Any) -> Scored | None:
    from ..studies.sparsefinder.quality import Scored

    if args.data is None:
        return None
    about = graphs.about
    return Scored(
        about["teacher"],
        args.data,
        about["block"],
        args.subset,
        args.references,
        limit=args.limit,
        long=about["min_length"],  # sentences as long as those of the graphs are also scored separately
    )


def _about(args: Namespace) -> dict[str, Any]:
    """What a file of results begins with."""
    from ..support.signature import environment, signature

    options = {name: value for name, value in vars(args).items() if name not in ("run", "jobs", "dry_run", "only")}
    return {"signature": signature(), "environment": environment(), "options": options}


OUT = "--out DIR!  for the results; the same command resumes there"
TEACHER = """
data DATA               the folder of binary data
--path CHECKPOINT!      the teacher: a model with entmax attention
"""
GRAPHS = "graphs GRAPHS  a folder of `leapformer sparsefinder extract`"
FITTED = f"""
{GRAPHS}
--fitted FILE... =      the files of `leapformer sparsefinder fit`, one for each seed
{OUT}
--sentences N:int       measure at most N (default: all that were not fitted to)
"""
GLOBAL = "--global (none|first|both) -> ends = first  tokens with all edges, in every pattern"
PATTERN = f"""
{FITTED}
{GLOBAL}
--mechanism NAME!       a pattern, as sparsefinder-distance
--set NAME=VALUE... -> options =  its options, as in sparsefinder_threshold=1.5
--window W:int = 0      an odd number, or 0 for none
"""
QUALITY = """
--data DATA             also score perplexity or BLEU on this folder of binary data
--subset NAME = test    of --data
--references FILE       for BLEU: a detokenised line for each sentence
--limit N:int           score at most N sentences (default: all)
"""
SETTINGS = "\n".join(
    f"--{name} X:{type(getattr(DEFAULT, name)).__name__} = {getattr(DEFAULT, name)}  {text}"
    for name, text in {
        "dimensions": "dimensions r to which queries and keys are projected",
        "margin": "margin of the loss",
        "lr": "learning rate of Adam",
        "l2": "weight decay",
        "batch": "sentences of an update",
        "epochs": "passes over the sentences",
        "clip": "largest norm of the gradient",
        "part": "share of the sentences to fit to; the rest is for evaluation",
        "points": "queries and keys of a head that are clustered; 0: all",
    }.items()
)
EXTRACT = f"""
{TEACHER}
--block BLOCK!          encoder-self, decoder-self or decoder-cross
--out DIR!              for the graphs; the same command resumes there
--subset NAME = train   of the data
--sentences N:int = 1000  how many
--min-length N:int = 21  leave out sentences of fewer tokens, the mark of the end among them
--seed N:int = 1        of the choice of sentences
"""
FIT = f"""
{GRAPHS}
--out DIR!              for seed1.pt, ...; finished ones are kept
--seeds N...:int = 1 2 3
{SETTINGS}
--blocks Z...:int =     fit sparsefinder-block1 and -block2, too, for blocks of so many tokens
--loss {choice(LOSSES)} = {DEFAULT.loss}  of each edge and one other key (triple, the paper), or of sums per query
                        (query, the released code)
--projections {choice(PROJECTIONS)} = {DEFAULT.projections}  one for queries and keys (shared, the paper), or one each
                        (separate, the released code)
--jobs N:int = 1        seeds at once, one thread each
{calls.study_options("seeds")}
"""
PARETO = f"""
{FITTED}
{GLOBAL}
--grid NAME = union     section5 or c2 of the paper, union of both and of what was released, small
--mechanisms NAME...    (default: all patterns that serve the block)
--windows W...:int      (default: those of the paper for the block)
--quality-points N:int = 12  with --data: score this many points of each pattern, along its front
--set NAME=VALUE... -> options =  an option for all patterns that have it, as in sparsefinder_distance=squared or
                        sparsefinder_nearest=2
--note TEXT             a line above the tables
{QUALITY}
--jobs N:int = 1        points at once, one thread each
{calls.study_options("points")}
"""
BLOCKS = f"""
{TEACHER}
--fitted FILE           a file of `leapformer sparsefinder fit --blocks 2 4 8 16`
{OUT}
--grid NAME = union     union, the paper's, or small
--mechanisms NAME... = sparsefinder-block1 sparsefinder-block2 entmax-bigbird-blocks
--subset NAME = test    of the data
--limit N:int = 500     score at most N samples
--batch N:int = 8       samples of a batch
{calls.study_options("points")}
"""
DRAW = f"""
{PATTERN}
--sentence N:int = 0    index among the sentences held out from the fit, from 0
--layer N:int           from 1 (default: all)
--head N:int            from 0 (default: all)
--most N:int = 40       tokens, at most
"""
TAGS = f"""
{FITTED}
--tags FILE             a word, a tab and its tag on each line, and an empty line after each sentence, for the lines of
                        text.txt, which the command writes to --out
| --spacy PIPELINE      tag with this installed pipeline, as en_core_web_sm
--centroids N:int = 8   of each head, as fitted
--most N:int = 12       tags; rarer ones are joined
--vocabulary DIR        where subwords are numbers: the folder with encoder.json and vocab.bpe
"""
STEPS = {
    name: Step(text, options, calls.owning(run))
    for name, text, options, run in (
        ("extract", "write a teacher's queries, keys and graphs to disk", EXTRACT, _extract),
        ("fit", "fit projections and centroids to them", FIT, _fit),
        ("evaluate", "sparsity, recall and quality of one pattern", PATTERN + QUALITY, _evaluate),
        ("draw", "a predicted graph and its attention, head by head, with the gold edges", DRAW, _draw_graphs),
        ("tags", "parts of speech in the buckets of sparsefinder-kmeans", TAGS, _tags),
        ("blocks", "seconds and perplexity of a masked language model over chosen blocks", BLOCKS, _blocks),
        ("pareto", "all patterns of a grid: tables and curves", PARETO, _pareto),
    )
}

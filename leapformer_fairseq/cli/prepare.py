"""`leapformer prepare`: prepare a downloaded data set for training and evaluation."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..data import (
    documents,
    joined,
    labelled,
    ljspeech,
    parallel,
    speech,
    speech_releases,
    tables,
    talks,
    wikitext,
)
from ..data.lra import prepare as lra
from ..data.recordings import Recording
from ..runtime.audio import SAMPLE_RATE
from ..support.errors import LeapformerError
from . import calls

HELP = (
    "prepare a data set: speech translation, whole talks, translation, language modelling, classification, text to "
    "speech"
)
LEAST_PIECES = 8  # four of them are special: bos, pad, eos, unk
SPEECH = speech_releases.DATASETS
OF_SOME_HOURS = ("mboshi", "quechua")  # small data sets, with the recipe for the user's own recordings
_ROOTS = {
    "speech": "recordings of your own, described by tables",
    "mustc": "MuST-C en-de: holds en-de/data",
    "covost2": "CoVoST 2 fr-en: holds validated.tsv, covost_v2.*.tsv, clips",
    "mboshi": "Mboshi-French: holds full_corpus_newsplit",
    "quechua": "Quechua-Spanish of IWSLT 2023: holds que_spa_clean",
    "talks": "whole talks, joined of sentences: holds SPLIT.source, SPLIT.target and SPLIT_asr.tsv, as `leapformer "
    "corpus` and `prepare` leave them",
    "mustc-talks": "the whole talks of a MuST-C en-de test set: holds en-de/data",
    "acl6060": "the talks of ACL 60/60: holds 2/acl_6060",
    "multi30k": "Multi30k: holds {train,val,test_2016_flickr}.LANGUAGE, all files here as they are or with .gz",
    "iwslt14": "IWSLT 2014: holds {train,valid,test}.LANGUAGE, or the release de-en.tgz",
    "iwslt17": "IWSLT 2017: holds {train,valid,test}.LANGUAGE, or the release en-de.tgz or en-fr.tgz of WIT3",
    "iwslt14-documents": "IWSLT 2014 in windows of sentences of one talk: holds {train,valid,test}.LANGUAGE with an "
    "empty line between talks, or the release SOURCE-TARGET.tgz",
    "text": "parallel text of your own: holds {train,valid,test}.LANGUAGE, a sentence a line, as they are or with .gz",
    "tatoeba": "Tatoeba German-English: holds deu-eng.zip of manythings.org, or deu.txt out of it",
    "python_docs": "the Spanish translation of Python's documentation: holds *.po files of python-docs-es",
    "wmt14": "WMT 2014: holds {train,valid,test}.LANGUAGE, or the archives of the release",
    "wikitext2": "WikiText-2: holds wiki.{train,valid,test}.tokens or {train,valid,test}.txt",
    "wikitext103": "WikiText-103: holds wiki.{train,valid,test}.tokens or {train,valid,test}.txt",
    "mlm": "text for masked language models: holds {train,valid,test}.txt or wiki.{train,valid,test}.tokens, a "
    "sentence a line, an empty line between documents",
    "glue": "a task of GLUE: holds TASK/*.tsv, where TASK is MNLI, QNLI, QQP or SST-2",
    "race": "RACE: holds {train,dev,test}/{middle,high}/*.txt",
    "csqa": "CommonsenseQA: holds {train,dev}_rand_split.jsonl",
    "lra": "a task of Long Range Arena: holds the files of its release",
    "ljspeech": "LJSpeech: holds metadata.csv and wavs, or LJSpeech-1.1 with both",
}


_TASKS = {
    labelled.NAME: ", ".join(labelled.TASKS),
    lra.NAME: "; ".join(f"{name}: {task.holds}" for name, task in lra.TASKS.items()),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one sub-command per data set."""
    adders = {
        tables.NAME: _add_tables,
        **dict.fromkeys(SPEECH, _add_speech),
        "talks": _add_talks,
        "mustc-talks": _add_mustc_talks,
        "acl6060": _add_acl6060,
        **dict.fromkeys(parallel.DATASETS, _add_parallel),
        **dict.fromkeys(wikitext.SIZES, _add_wikitext),
        documents.NAME: _add_documents,
        labelled.NAME: _add_glue,
        **dict.fromkeys(labelled.DATASETS, _add_choices),
        lra.NAME: _add_lra,
        ljspeech.NAME: _add_ljspeech,
    }
    actions = parser.add_subparsers(metavar="DATASET", required=True)
    for name, root in _ROOTS.items():
        action = actions.add_parser(name, help=root, description=f"prepare {root}")
        if name in _TASKS:
            action.add_argument("task", metavar="TASK", help=_TASKS[name])
        if name != tables.NAME:
            optional = "?" if name in wikitext.SIZES else None  # its files can be given one by one instead
            action.add_argument("root", metavar="ROOT", nargs=optional, help=root.partition(": ")[2])
        action.add_argument("--out", required=True, metavar="DIR", help="where to write; the same command resumes")
        action.set_defaults(dataset=name)
        adders[name](action, name)


def _add_vocabulary(parser: argparse.ArgumentParser, size: int, text: str) -> None:
    parser.add_argument("--vocab-size", type=_pieces, default=size, metavar="N", help=f"{text} (default: %(default)s)")


def _pieces(text: str) -> int:
    if not text.isdecimal() or int(text) < LEAST_PIECES:
        raise argparse.ArgumentTypeError(f"{text}: give a whole number of at least {LEAST_PIECES}")
    return int(text)


def _add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes (default: %(default)s)")


def _add_download(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--download", action="store_true", help="fetch the files that ROOT lacks")


def _add_tables(parser: argparse.ArgumentParser, name: str) -> None:
    needed = "columns audio and text, and if there translation, speaker, id, start and end in seconds; tabs, or .csv"
    parser.add_argument("--train", required=True, metavar="TABLE", help=f"the recordings to train on: {needed}")
    parser.add_argument("--dev", required=True, metavar="TABLE", help="recordings to choose the best epoch on")
    parser.add_argument("--test", required=True, metavar="TABLE", help="recordings for the evaluation")
    parser.add_argument(
        "--columns", nargs="+", default=[], metavar="NAME=COLUMN", help="other names, as audio=path text=sentence"
    )
    parser.add_argument("--audio-root", metavar="DIR", help="paths of audio begin here (default: beside the table)")
    _add_vocabulary(parser, tables.VOCAB_SIZE, "subwords per language")
    _add_vocabulary_type(parser)
    _add_workers(parser)
    parser.set_defaults(prepare=_tables)


def _add_vocabulary_type(parser: argparse.ArgumentParser) -> None:
    kinds = ("unigram", "bpe", "char")
    parser.add_argument("--vocab-type", choices=kinds, default="unigram", help="of translations (default: %(default)s)")
    parser.add_argument(
        "--transcript-type", choices=kinds, default="char", help="of transcripts, the recogniser's targets; in a few "
        "hours of speech, most subwords occur too rarely to be learned (default: %(default)s)",
    )  # fmt: skip


def _add_speech(parser: argparse.ArgumentParser, name: str) -> None:
    _add_vocabulary(parser, SPEECH[name].vocab_size, "subwords per language")
    if name in OF_SOME_HOURS:
        _add_vocabulary_type(parser)
    _add_workers(parser)
    parser.set_defaults(prepare=_speech)


def _add_talks(parser: argparse.ArgumentParser, name: str) -> None:
    default = joined.Joining()
    add = parser.add_argument
    add("--split", default="test", metavar="NAME", help="whose sentences (default: %(default)s)")
    add("--talks", type=int, default=default.talks, metavar="N", help="how many (default: %(default)s)")
    add("--minutes", type=float, default=default.minutes, metavar="M", help="of each, or a little more (default: "
        "%(default)s)")  # fmt: skip
    add("--gap-s", type=float, nargs=2, default=default.gap_s, metavar=("LOW", "HIGH"), help="seconds between two "
        "sentences; 0 0: no pauses; below 0 they overlap (default: 0.3 1.5)")  # fmt: skip
    add("--snr-db", type=float, metavar="DB", help="decibels of speech above pink noise in all of the talk (default: "
        "no noise)")  # fmt: skip
    add("--seed", type=int, default=default.seed, metavar="N", help="of order, gaps and noise (default: %(default)s)")
    parser.set_defaults(prepare=_joined_talks)


def _add_mustc_talks(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument(
        "--split", choices=speech_releases.MUSTC.splits[1:], default="tst-COMMON", help="(default: %(default)s)"
    )
    parser.set_defaults(prepare=_mustc_talks)


def _add_acl6060(parser: argparse.ArgumentParser, name: str) -> None:
    add = parser.add_argument
    add("--split", choices=("dev", "eval"), default="dev", help="(default: %(default)s)")
    add("--target", choices=talks.ACL_LANGUAGES, default="de", help="language of the references (default: %(default)s)")
    add("--segments", type=Path, required=True, metavar="FILE", help="YAML list of {wav, offset, duration}, a sentence "
        "each, which the release lacks and IWSLT publishes: ACL.ACLdev2023.en-xx.gold_segments.yaml")  # fmt: skip
    parser.set_defaults(prepare=_acl6060)


def _add_parallel(parser: argparse.ArgumentParser, name: str) -> None:
    dataset = parallel.DATASETS[name]
    parser.add_argument(
        "--pair",
        default=dataset.pair,
        metavar="SOURCE-TARGET",
        help="languages (default: %(default)s)" if dataset.pair else "what the names of the files end with, e.g. en-de",
    )
    _add_vocabulary(parser, dataset.vocab_size, "subwords for both languages together")
    if name == parallel.OWN or dataset.unsplit is not None:  # nothing can be downloaded
        parser.set_defaults(download=False, window=None)
    elif dataset.window is None:
        _add_download(parser)
        parser.set_defaults(window=None)
    else:
        parser.set_defaults(download=False)
        parser.add_argument(
            "--window", type=int, default=dataset.window, metavar="N",
            help="sentences of a document that are translated together, the last one with the others as its context "
            "(default: %(default)s)",
        )  # fmt: skip
    parser.set_defaults(prepare=_parallel)


def _add_wikitext(parser: argparse.ArgumentParser, name: str) -> None:
    for split in wikitext.SPLITS:
        parser.add_argument(f"--{split}", metavar="FILE", help=f"the {split} text, instead of the one in ROOT")
    parser.add_argument(
        "--train-on-valid",
        action="store_true",
        help="train on the validation text without its last tenth, validate on that tenth",
    )
    _add_download(parser)
    parser.set_defaults(prepare=_wikitext)


def _add_documents(parser: argparse.ArgumentParser, name: str) -> None:
    _add_vocabulary(parser, documents.VOCAB_SIZE, "subwords, made of the training text")
    parser.add_argument(
        "--vocabulary", metavar="DIR",
        help="cut the text with this vocabulary instead: the result of another `prepare mlm`, or a folder with "
        "RoBERTa's encoder.json, vocab.bpe and dict.txt",
    )  # fmt: skip
    parser.set_defaults(prepare=_documents)


def _add_pretrained_vocabulary(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--vocabulary", required=True, metavar="DIR",
        help="that of the pre-trained model: the result of `prepare mlm`, or a folder with RoBERTa's encoder.json, "
        "vocab.bpe and dict.txt",
    )  # fmt: skip


def _add_choices(parser: argparse.ArgumentParser, name: str) -> None:
    _add_pretrained_vocabulary(parser)
    parser.set_defaults(prepare=_choices)


def _add_glue(parser: argparse.ArgumentParser, name: str) -> None:
    _add_pretrained_vocabulary(parser)
    _add_download(parser)
    parser.set_defaults(prepare=_glue)


def _add_lra(parser: argparse.ArgumentParser, name: str) -> None:
    quirks = "; ".join(f"{quirk} ({', '.join(about.tasks)}): {about.what}" for quirk, about in lra.QUIRKS.items())
    parser.add_argument(
        "--quirks", metavar="NAMES", default="", help=f"flaws of the published data, separated by commas: {quirks}"
    )
    parser.set_defaults(prepare=_lra)


def _add_ljspeech(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument(
        "--textgrids", metavar="DIR",
        help="Montreal Forced Aligner's ID.TextGrid files: phonemes with durations, instead of espeak-ng's without any",
    )  # fmt: skip
    parser.add_argument(
        "--sample-rate", type=int, default=SAMPLE_RATE, metavar="HZ", help="of the result (default: %(default)s)"
    )
    _add_workers(parser)
    _add_download(parser)
    parser.set_defaults(prepare=_ljspeech)


@calls.waiting
def run(args: argparse.Namespace) -> int:
    """Prepare the data and print what was kept and left out. Raises LeapformerError for missing or unusable data."""
    for line in args.prepare(args):
        print(line)
    return 0


def _speech(args: argparse.Namespace) -> list[str]:
    dataset = SPEECH[args.dataset]
    if args.dataset not in OF_SOME_HOURS:
        return _split_lines(speech.prepare(dataset, args.root, args.out, args.vocab_size, args.workers))
    dataset = replace(dataset, vocab_type=args.vocab_type, transcript_type=args.transcript_type)
    return _prepare_with_advice(dataset, Path(args.root).absolute(), args)


def _tables(args: argparse.Namespace) -> list[str]:
    paths = {split: Path(getattr(args, split)).absolute() for split in ("train", "dev", "test")}
    names = {}
    for text in args.columns:
        name, equals, column = text.partition("=")
        if not equals or not column:
            raise LeapformerError(f"--columns {text}: give NAME=COLUMN, as in audio=path")
        names[name] = column
    audio_root = None if args.audio_root is None else Path(args.audio_root).absolute()
    dataset = tables.dataset(paths, names, audio_root, args.vocab_type, args.transcript_type)
    recordings = {split: dataset.read_split(paths["train"].parent, split) for split in paths}
    notes = [f"{split}: {line}" for split, rows in recordings.items() for line in tables.kinds_of_audio(rows)]
    return [*notes, *_prepare_with_advice(dataset, paths["train"].parent, args)]


def _prepare_with_advice(dataset: speech.SpeechDataset, root: Path, args: argparse.Namespace) -> list[str]:
    """Prepare a small data set; return its summary, and what to expect of it."""
    summaries, out = speech.prepare(dataset, root, args.out, args.vocab_size, args.workers), Path(args.out).absolute()
    lists = [f"{split}: {out}/left_out_{split}.tsv lists them" for split, kept in summaries.items() if kept.dropped]
    return [*_split_lines(summaries), *lists, *tables.advice(out, args.dataset)]


def _ljspeech(args: argparse.Namespace) -> list[str]:
    return _split_lines(
        ljspeech.prepare(args.root, args.out, args.textgrids, args.sample_rate, args.workers, args.download)
    )


def _joined_talks(args: argparse.Namespace) -> list[str]:
    root, gap = Path(args.root).absolute(), (args.gap_s[0], args.gap_s[1])
    joining = joined.Joining(args.talks, args.minutes, gap, args.snr_db, args.seed)
    about = {"root": str(root), "split": args.split, **joining.about}
    sentences = joined.read_sentences(root, args.split)
    return _talk_lines(args.out, talks.prepare(args.out, about, lambda out: joined.join(sentences, joining, out)))


def _mustc_talks(args: argparse.Namespace) -> list[str]:
    root = Path(args.root).absolute()
    segments = speech_releases.MUSTC.read_split(root, args.split)
    return _published_talks(args, {"mustc": str(root), "split": args.split}, segments)


def _acl6060(args: argparse.Namespace) -> list[str]:
    root = Path(args.root).absolute()
    segments = talks.read_acl6060(root, args.split, args.target, args.segments)
    about = {"acl6060": str(root), "split": args.split, "target": args.target, "segments": str(args.segments)}
    return _published_talks(args, about, segments)


def _published_talks(args: argparse.Namespace, about: Mapping[str, str], segments: Sequence[Recording]) -> list[str]:
    return _talk_lines(args.out, talks.prepare(args.out, about, lambda _: talks.published(segments, args.split)))


def _talk_lines(out: str, summary: Mapping[str, Any]) -> list[str]:
    hours, share = summary["audio_s"] / 3600, summary["segments_s"] / summary["audio_s"]
    lines = [f"{summary['talks']} talks, {summary['segments']} segments, {hours:.2f} h, {share:.0%} of it in segments"]
    if "checksum" in summary:
        lines.append(f"{summary['sentences']} different sentences; samples clipped: {summary['clipped_samples']}")
        lines.append(f"checksum {summary['checksum']}")
    return [*lines, f"talks in {out}: `leapformer simulate --talks {out}`, `leapformer curve --talks {out}`"]


def _split_lines(summaries: Mapping[str, speech.SplitSummary]) -> list[str]:
    return [
        f"{split}: {kept.utterances} utterances, {kept.seconds / 3600:.2f} h; left out: {kept.reasons() or 'none'}"
        for split, kept in summaries.items()
    ]


def _parallel(args: argparse.Namespace) -> list[str]:
    dataset = replace(parallel.DATASETS[args.dataset], window=args.window)
    summary = parallel.prepare(dataset, args.root, args.out, args.pair, args.vocab_size, args.download)
    lines = []
    for split, kept in summary.items():
        dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(kept["dropped"].items()))
        documents_of = f" of {kept['documents']} documents" if "documents" in kept else ""
        lines.append(f"{split}: {kept['pairs']} sentence pairs{documents_of}; left out: {dropped or 'none'}")
    return lines if dataset.unsplit is None else [*lines, f"{Path(args.out).absolute()}/left_out.tsv lists them"]


def _wikitext(args: argparse.Namespace) -> list[str]:
    files = {split: getattr(args, split) for split in wikitext.SPLITS}
    summary = wikitext.prepare(args.dataset, args.root, args.out, files, args.train_on_valid, args.download)
    lines = [f"{split}: {count} tokens" for split, count in summary["tokens"].items()]
    return [*lines, f"{summary['words']} words; {summary['unknown_in_test']} of the test text's are not among them"]


def _documents(args: argparse.Namespace) -> list[str]:
    summary = documents.prepare(args.root, args.out, args.vocab_size, args.vocabulary)
    return [f"{split}: {count} tokens" for split, count in summary.items()]


def _glue(args: argparse.Namespace) -> list[str]:
    summary = labelled.prepare_task(args.task, args.root, args.out, args.vocabulary, args.download)
    return [f"{split}: {kept['examples']} examples; left out: {kept['left_out']}" for split, kept in summary.items()]


def _choices(args: argparse.Namespace) -> list[str]:
    summary = labelled.prepare_choices(args.dataset, args.root, args.out, args.vocabulary)
    return [f"{split}: {count} questions" for split, count in summary.items()]


def _lra(args: argparse.Namespace) -> list[str]:
    summary = lra.prepare(args.task, args.root, args.out, [name for name in args.quirks.split(",") if name])
    left_out = ", ".join(f"{count} {reason}" for reason, count in summary["left_out"].items() if count)
    lines = [f"{split}: {summary[split]['examples']} examples" for split in lra.SPLITS]
    return [*lines, f"left out: {left_out or 'none'}"]

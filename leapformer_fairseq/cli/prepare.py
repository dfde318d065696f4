"""`leapformer prepare`: prepare a data set, published or of your own. For speech translation, whole talks, translation,
language modelling, classification, text to speech.
"""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..data import (
    documents,
    joined,
    labelled,
    ljspeech,
    pairs,
    parallel,
    speech,
    speech_releases,
    tables,
    talks,
    wikitext,
)
from ..data.lra import prepare as lra
from ..runtime.audio import SAMPLE_RATE
from ..support.errors import LeapformerError
from ..support.options import Step, choice
from . import calls

STEP = "DATASET"
LEAST_PIECES = 8  # four of them are special: bos, pad, eos, unk
SPEECH = speech_releases.DATASETS
KINDS = "(unigram|bpe|char)"
JOINING = joined.Joining()


def pieces(text: str) -> int:
    """A size of a vocabulary."""
    if not text.isdecimal() or int(text) < LEAST_PIECES:
        raise ArgumentTypeError(f"{text}: give a whole number of at least {LEAST_PIECES}")
    return int(text)


# -------------------------------------------------------------------------------------------- what is done, and printed
def _speech(args: Namespace) -> Iterator[str]:
    dataset = speech_releases.paired(args.dataset, args.pair)
    yield from _split_lines(speech.prepare(dataset, args.root, args.out, args.vocab_size, args.workers))


def _small_speech(args: Namespace) -> Iterator[str]:
    dataset = replace(SPEECH[args.dataset], vocab_type=args.vocab_type, transcript_type=args.transcript_type)
    yield from _with_advice(dataset, Path(args.root).absolute(), args)


def _tables(args: Namespace) -> Iterator[str]:
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
    yield from (f"{split}: {line}" for split, rows in recordings.items() for line in tables.kinds_of_audio(rows))
    yield from _with_advice(dataset, paths["train"].parent, args)


def _with_advice(dataset: speech.SpeechDataset, root: Path, args: Namespace) -> Iterator[str]:
    """Prepare a small data set, with the recipe for own recordings; its summary, and what to expect of it."""
    summaries, out = speech.prepare(dataset, root, args.out, args.vocab_size, args.workers), Path(args.out).absolute()
    yield from _split_lines(summaries)
    yield from (f"{split}: {out}/left_out_{split}.tsv lists them" for split, kept in summaries.items() if kept.dropped)
    yield from tables.advice(out, args.dataset)


def _split_lines(summaries: Mapping[str, speech.SplitSummary]) -> Iterator[str]:
    for split, kept in summaries.items():
        left_out = kept.reasons() or "none"
        yield f"{split}: {kept.utterances} utterances, {kept.seconds / 3600:.2f} h; left out: {left_out}"


def _ljspeech(args: Namespace) -> Iterator[str]:
    options = args.textgrids, args.sample_rate, args.workers, args.download
    yield from _split_lines(ljspeech.prepare(args.root, args.out, *options))


def _joined_talks(args: Namespace) -> Iterator[str]:
    joining = joined.Joining(args.talks, args.minutes, (args.gap_s[0], args.gap_s[1]), args.snr_db, args.seed)
    about = {"root": str(Path(args.root).absolute()), "split": args.split, **joining.about}
    sentences = joined.read_sentences(Path(args.root).absolute(), args.split)
    yield from _talk_lines(talks.prepare(args.out, about, lambda out: joined.join(sentences, joining, out)), args)


def _mustc_talks(args: Namespace) -> Iterator[str]:
    dataset, root = speech_releases.paired("mustc", args.pair), Path(args.root).absolute()
    segments = dataset.read_split(root, args.split)
    about = {dataset.name: str(root), "split": args.split}
    yield from _talk_lines(talks.prepare(args.out, about, lambda _: talks.published(segments, args.split)), args)


def _acl6060(args: Namespace) -> Iterator[str]:
    segments = talks.read_acl6060(Path(args.root).absolute(), args.split, args.target, args.segments)
    about = {"acl6060": str(Path(args.root).absolute()), "split": args.split, "target": args.target}
    about["segments"] = str(args.segments)
    yield from _talk_lines(talks.prepare(args.out, about, lambda _: talks.published(segments, args.split)), args)


def _talk_lines(summary: Mapping[str, Any], args: Namespace) -> Iterator[str]:
    hours, share = summary["audio_s"] / 3600, summary["segments_s"] / summary["audio_s"]
    yield f"{summary['talks']} talks, {summary['segments']} segments, {hours:.2f} h, {share:.0%} of it in segments"
    if "checksum" in summary:
        yield f"{summary['sentences']} different sentences; samples clipped: {summary['clipped_samples']}"
        yield f"checksum {summary['checksum']}"
    yield f"talks in {args.out}: `leapformer simulate --talks {args.out}`, `leapformer curve --talks {args.out}`"


def _parallel(args: Namespace) -> Iterator[str]:
    dataset = replace(parallel.DATASETS[args.dataset], window=getattr(args, "window", None))
    download = getattr(args, "download", False)
    for split, kept in parallel.prepare(dataset, args.root, args.out, args.pair, args.vocab_size, download).items():
        dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(kept["dropped"].items()))
        documents_of = f" of {kept['documents']} documents" if "documents" in kept else ""
        yield f"{split}: {kept['pairs']} sentence pairs{documents_of}; left out: {dropped or 'none'}"
    if dataset.unsplit is not None:
        yield f"{Path(args.out).absolute()}/left_out.tsv lists them"


def _wikitext(args: Namespace) -> Iterator[str]:
    files = {split: getattr(args, split) for split in wikitext.SPLITS}
    summary = wikitext.prepare(args.dataset, args.root, args.out, files, args.train_on_valid, args.download)
    yield from (f"{split}: {count} tokens" for split, count in summary["tokens"].items())
    yield f"{summary['words']} words; {summary['unknown_in_test']} of the test text's are not among them"


def _documents(args: Namespace) -> Iterator[str]:
    for split, count in documents.prepare(args.root, args.out, args.vocab_size, args.vocabulary).items():
        yield f"{split}: {count} tokens"


def _glue(args: Namespace) -> Iterator[str]:
    for split, kept in labelled.prepare_task(args.task, args.root, args.out, args.vocabulary, args.download).items():
        yield f"{split}: {kept['examples']} examples; left out: {kept['left_out']}"


def _choices(args: Namespace) -> Iterator[str]:
    for split, count in labelled.prepare_choices(args.dataset, args.root, args.out, args.vocabulary).items():
        yield f"{split}: {count} questions"


def _lra(args: Namespace) -> Iterator[str]:
    summary = lra.prepare(args.task, args.root, args.out, [name for name in args.quirks.split(",") if name])
    yield from (f"{split}: {summary[split]['examples']} examples" for split in lra.SPLITS)
    left_out = ", ".join(f"{count} {reason}" for reason, count in summary["left_out"].items() if count)
    yield f"left out: {left_out or 'none'}"


# ------------------------------------------------------------------------------------------------------------ data sets
MUSTC_PAIR = f"--pair SOURCE-TARGET = {pairs.PAIRS['mustc']}  languages"
COVOST_PAIR = f"--pair SOURCE-TARGET = {pairs.PAIRS['covost2']}  languages"
WORKERS = "--workers N:int = 1  processes"
DOWNLOAD = "--download  fetch the files that ROOT lacks"
TYPES = f"""
--vocab-type {KINDS} = unigram  of translations
--transcript-type {KINDS} = char  of transcripts, the recogniser's targets; in a few hours of speech, most subwords
                        occur too rarely to be learned
"""
PRETRAINED = """
--vocabulary DIR!       that of the pre-trained model: the result of `prepare mlm`, or a folder with RoBERTa's
                        encoder.json, vocab.bpe and dict.txt
"""
TABLES = f"""
--train TABLE!          the recordings to train on: columns audio and text, and if there translation, speaker, id, start
                        and end in seconds; tabs, or .csv
--dev TABLE!            recordings to choose the best epoch on
--test TABLE!           recordings for the evaluation
--columns NAME=COLUMN... =  other names, as audio=path text=sentence
--audio-root DIR        paths of audio begin here (default: beside the table)
{TYPES}
"""
TALKS = f"""
--split NAME = test     whose sentences
--talks N:int = {JOINING.talks}  how many
--minutes M:float = {JOINING.minutes:g}  of each, or a little more
--gap-s LOW HIGH:float = {JOINING.gap_s[0]} {JOINING.gap_s[1]}  seconds between two sentences; 0 0: no pauses; below 0
                        they overlap
--snr-db DB:float       decibels of speech above pink noise in all of the talk (default: no noise)
--seed N:int = {JOINING.seed}  of order, gaps and noise
"""
ACL = f"""
--split (dev|eval) = dev
--target {choice(talks.ACL_LANGUAGES)} = de  language of the references
--segments FILE:path!   YAML list of {{wav, offset, duration}}, a sentence each, which the release lacks and IWSLT
                        publishes: ACL.ACLdev2023.en-xx.gold_segments.yaml
"""
WIKITEXT = f"""
--train FILE            the train text, instead of the one in ROOT
--valid FILE            the valid text, instead of the one in ROOT
--test FILE             the test text, instead of the one in ROOT
--train-on-valid        train on the validation text without its last tenth, validate on that tenth
{DOWNLOAD}
"""
DOCUMENTS = f"""
--vocab-size N:pieces = {documents.VOCAB_SIZE}  subwords, made of the training text
--vocabulary DIR        cut the text with this vocabulary instead: the result of another `prepare mlm`, or a folder with
                        RoBERTa's encoder.json, vocab.bpe and dict.txt
"""
LJSPEECH = f"""
--textgrids DIR         Montreal Forced Aligner's ID.TextGrid files: phonemes with durations, instead of espeak-ng's
                        without any
--sample-rate HZ:int = {SAMPLE_RATE}  of the result
{WORKERS}
{DOWNLOAD}
"""
QUIRKS = "--quirks NAMES =  flaws of the published data, separated by commas: "
QUIRKS += "; ".join(f"{quirk} ({', '.join(about.tasks)}): {about.what}" for quirk, about in lra.QUIRKS.items())
WINDOW = f"""
--window N:int = {parallel.DATASETS["iwslt14-documents"].window}  sentences of a document that are translated together,
                        the last one with the others as its context
"""
TASKS = {
    labelled.NAME: ", ".join(labelled.TASKS),
    lra.NAME: "; ".join(f"{name}: {task.holds}" for name, task in lra.TASKS.items()),
}
WIKI_HOLDS = "holds wiki.{train,valid,test}.tokens or {train,valid,test}.txt"
# how it is prepared, what its ROOT holds, its options
DATASETS: dict[str, tuple[Callable[[Namespace], Iterator[str]], str, str]] = {
    tables.NAME: (_tables, "recordings of your own, described by tables", TABLES),
    "mustc": (_speech, "MuST-C: holds en-de/data", MUSTC_PAIR),
    "covost2": (_speech, "CoVoST 2: holds validated.tsv, covost_v2.*.tsv, clips", COVOST_PAIR),
    "mboshi": (_small_speech, "Mboshi-French: holds full_corpus_newsplit", TYPES),
    "quechua": (_small_speech, "Quechua-Spanish of IWSLT 2023: holds que_spa_clean", TYPES),
    "talks": (
        _joined_talks,
        "whole talks, joined of sentences: holds SPLIT.source, SPLIT.target and SPLIT_asr.tsv, as `leapformer corpus` "
        "and `prepare` leave them",
        TALKS,
    ),
    "mustc-talks": (
        _mustc_talks,
        "the whole talks of a MuST-C test set: holds en-de/data",
        f"--split {choice(speech_releases.MUSTC.splits[1:])} = tst-COMMON\n{MUSTC_PAIR}",
    ),
    "acl6060": (_acl6060, "the talks of ACL 60/60: holds 2/acl_6060", ACL),
    "multi30k": (
        _parallel,
        "Multi30k: holds {train,val,test_2016_flickr}.LANGUAGE, all files here as they are or with .gz",
        DOWNLOAD,
    ),
    "iwslt14": (_parallel, "IWSLT 2014: holds {train,valid,test}.LANGUAGE, or the release de-en.tgz", DOWNLOAD),
    "iwslt17": (
        _parallel,
        "IWSLT 2017: holds {train,valid,test}.LANGUAGE, or the release en-de.tgz or en-fr.tgz of WIT3",
        DOWNLOAD,
    ),
    "iwslt14-documents": (
        _parallel,
        "IWSLT 2014 in windows of sentences of one talk: holds {train,valid,test}.LANGUAGE with an empty line between "
        "talks, or the release SOURCE-TARGET.tgz",
        WINDOW,
    ),
    "text": (
        _parallel,
        "parallel text of your own: holds {train,valid,test}.LANGUAGE, a sentence a line, as they are or with .gz",
        "",
    ),
    "tatoeba": (_parallel, "Tatoeba German-English: holds deu-eng.zip of manythings.org, or deu.txt out of it", ""),
    "python_docs": (
        _parallel,
        "the Spanish translation of Python's documentation: holds *.po files of python-docs-es",
        "",
    ),
    "wmt14": (_parallel, "WMT 2014: holds {train,valid,test}.LANGUAGE, or the archives of the release", DOWNLOAD),
    "wikitext2": (_wikitext, f"WikiText-2: {WIKI_HOLDS}", WIKITEXT),
    "wikitext103": (_wikitext, f"WikiText-103: {WIKI_HOLDS}", WIKITEXT),
    documents.NAME: (
        _documents,
        "text for masked language models: holds {train,valid,test}.txt or wiki.{train,valid,test}.tokens, a sentence a "
        "line, an empty line between documents",
        DOCUMENTS,
    ),
    labelled.NAME: (
        _glue,
        "a task of GLUE: holds TASK/*.tsv, where TASK is MNLI, QNLI, QQP or SST-2",
        PRETRAINED + DOWNLOAD,
    ),
    "race": (_choices, "RACE: holds {train,dev,test}/{middle,high}/*.txt", PRETRAINED),
    "csqa": (_choices, "CommonsenseQA: holds {train,dev}_rand_split.jsonl", PRETRAINED),
    lra.NAME: (_lra, "a task of Long Range Arena: holds the files of its release", QUIRKS),
    ljspeech.NAME: (_ljspeech, "LJSpeech: holds metadata.csv and wavs, or LJSpeech-1.1 with both", LJSPEECH),
}


def _options(name: str, holds: str) -> Iterator[str]:
    """What a data set has in common with others."""
    if name in TASKS:
        yield f"task TASK  {TASKS[name]}"
    if name != tables.NAME:
        yield f"root {'[ROOT]' if name in wikitext.SIZES else 'ROOT'}  {holds}"  # of WikiText also file by file
    yield "--out DIR!  where to write; the same command resumes"
    if name in (tables.NAME, *SPEECH):
        size = SPEECH[name].vocab_size if name in SPEECH else tables.VOCAB_SIZE
        yield f"--vocab-size N:pieces = {size}  subwords per language\n{WORKERS}"
    if dataset := parallel.DATASETS.get(name):
        yield (
            f"--pair SOURCE-TARGET = {dataset.pair}  languages"
            if dataset.pair
            else "--pair SOURCE-TARGET =  what the names of the files end with, e.g. en-de"
        )
        yield f"--vocab-size N:pieces = {dataset.vocab_size}  subwords for both languages together"


def _run(name: str, prepare: Callable[[Namespace], Iterator[str]]) -> Callable[[Namespace], None]:
    def run(args: Namespace) -> None:
        """Prepare the data and print what was kept and left out; raises LeapformerError for unusable data."""
        args.dataset = name
        for line in prepare(args):
            print(line)

    return run


STEPS = {
    name: Step(root, "\n".join([*_options(name, root.partition(": ")[2]), options]), calls.waiting(_run(name, prepare)))
    for name, (prepare, root, options) in DATASETS.items()
}

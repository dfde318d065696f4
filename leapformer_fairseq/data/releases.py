"""Convert the releases of the text data sets to plain text: {train,valid,test}.LANGUAGE, one sentence per line.

Existing files are kept; archives are read as published, without unpacking.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ..support.errors import LeapformerError
from ..support.lines import find_text, read_lines, write_lines
from .download import fetch, member_lines

MULTI30K = "https://github.com/multi30k/dataset/raw/master/data/task1/raw"
MULTI30K_STEMS = ("train", "val", "test_2016_flickr")
IWSLT14 = "http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz"
IWSLT14_TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
IWSLT14_VALID = 23  # every 23rd sentence of the training text, as in fairseq's example
IWSLT14_PAGE = "https://wit3.fbk.eu/2014-01"  # links to an archive of all languages that only a browser can download
IWSLT14_TALKS = {"valid": ("TED.dev2010",), "test": ("TED.tst2010", "TED.tst2011", "TED.tst2012")}
IWSLT17_PAGE = "https://wit3.fbk.eu/2017-01-c"
IWSLT17_SETS = {"valid": ("tst2011", "tst2012", "tst2013", "tst2014"), "test": ("tst2015",)}
WMT14_TRAIN = {
    "http://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz": "training/europarl-v7.de-en",
    "http://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz": "commoncrawl.de-en",
    "http://www.statmt.org/wmt14/training-parallel-nc-v9.tgz": "training/news-commentary-v9.de-en",
}
WMT14_VALID = "http://data.statmt.org/wmt17/translation-task/dev.tgz"
WMT14_TEST = "http://www.statmt.org/wmt14/test-full.tgz"
TATOEBA = "deu-eng.zip"  # from manythings.org/anki
WIKITEXT = "https://wikitext.smerity.com/wikitext-{size}-v1.zip"
WIKITEXT_SPLITS = ("train", "valid", "test")
GLUE = "https://dl.fbaipublicfiles.com/glue/data/{archive}.zip"
GLUE_ARCHIVES = {"QQP": "QQP-clean", "QNLI": "QNLIv2"}  # the others have the name of their task

_SEGMENT = re.compile(r"<seg[^>]*>\s*(.*?)\s*</seg>")
_SEGMENT_OR_TALK = re.compile(rf"{_SEGMENT.pattern}|<doc\b")
_TITLE = re.compile(r"</?(?:title|description)>")

Texts = dict[str, Callable[[], Iterable[str]]]  # name of a file -> function that yields its lines
Reader = Callable[[Path, str], Iterable[str]]  # yields the sentences of an archive's member
Sources = dict[str, Sequence[tuple[str, str, Reader]]]  # split -> (address of the archive, member, reader)


def nothing(root: Path, languages: Sequence[str], download: bool) -> None:
    """Provide nothing: there is no release, and the user's files are there already."""


def multi30k(root: Path, languages: Sequence[str], download: bool) -> None:
    """Provide ROOT/{train,val,test_2016_flickr}.LANGUAGE[.gz] of Multi30k (Elliott et al., 2016, W16-3210; task 1)."""
    names = [f"{stem}.{language}" for stem in MULTI30K_STEMS for language in languages]
    for name in names if download else ():
        if find_text(root, [name]) is None:
            fetch(f"{MULTI30K}/{name}.gz", root / f"{name}.gz")


def iwslt14(root: Path, languages: Sequence[str], download: bool) -> None:
    """Provide TED talks, German and English (Cettolo et al., 2014); cased, untokenised; split as in fairseq's example.

    Every 23rd sentence of the training text is in the validation set; the test set joins five published sets.
    """

    def part(valid: bool, archive: Path, member: str) -> Iterator[str]:
        lines = enumerate(_tagged(archive, member), 1)
        return (line for n, line in lines if (n % IWSLT14_VALID == 0) == valid)

    training = "de-en/train.tags.de-en.{language}"
    sources: Sources = {
        "train": [(IWSLT14, training, partial(part, False))],
        "valid": [(IWSLT14, training, partial(part, True))],
        "test": [(IWSLT14, f"de-en/IWSLT14.{name}.de-en.{{language}}.xml", _segments) for name in IWSLT14_TESTS],
    }
    _provide(root, _texts(root, languages, sources), [IWSLT14], download)


def iwslt14_documents(root: Path, languages: Sequence[str], download: bool) -> None:
    """Provide TED talks, Spanish and English (Cettolo et al., 2014); an empty line before each, cased, untokenised.

    The validation set is dev2010 and the test set tst2010 to tst2012, as in Miculicich et al. (2018, D18-1325). The
    archive is not downloaded. Raises LeapformerError if both a file and the archive are missing.
    """
    page = f"{IWSLT14_PAGE} and take texts/{'/'.join(languages)}/{{archive}} out of 2014-01.tgz"
    segments = partial(_segments, pattern=_SEGMENT_OR_TALK)
    _provide_talks(root, languages, "IWSLT14.", IWSLT14_TALKS, _talks, segments, page)


def iwslt17(root: Path, languages: Sequence[str], download: bool) -> None:
    """Provide TED talks, English with German or French (Cettolo et al., 2017); cased, untokenised.

    The validation set is tst2011 to tst2014 and the test set tst2015, as in Treviso et al. (2022, arXiv:2109.12188).
    The archive is not downloaded. Raises LeapformerError if both a file and the archive are missing.
    """
    page = f"{IWSLT17_PAGE}, whose texts hold {{archive}}"
    _provide_talks(root, languages, "IWSLT17.TED.", IWSLT17_SETS, _tagged, _segments, page)


def _provide_talks(
    root: Path,
    languages: Sequence[str],
    prefix: str,
    sets: Mapping[str, Sequence[str]],
    training: Reader,
    evaluation: Reader,
    page: str,
) -> None:
    """Extract missing files from an archive of WIT3, which only a browser can download.

    `sets` names the sets of the validation and test splits, without the `prefix` of their files. `page` tells the user
    where the {archive} is.
    """
    pair = "-".join(languages)
    archive = root / f"{pair}.tgz"
    sources: Sources = {"train": [(archive.name, f"{pair}/train.tags.{pair}.{{language}}", training)]}
    for split, names in sets.items():
        members = [f"{pair}/{prefix}{name}.{pair}.{{language}}.xml" for name in names]
        sources[split] = [(archive.name, member, evaluation) for member in members]
    texts = _texts(root, languages, sources)
    missing = next((name for name in texts if find_text(root, [name]) is None), None)
    if missing and not archive.is_file():
        raise LeapformerError(
            f"no file {root / missing}, and no {archive.name} next to it to extract it from; get it with a browser "
            f"from {page.format(archive=archive.name)}"
        )
    _provide(root, texts, [archive.name], download=False)


def wmt14(root: Path, languages: Sequence[str], download: bool) -> None:
    """Provide WMT 2014, English and German, untokenised.

    The training text is Europarl 7, Common Crawl and News Commentary 9, the validation set newstest2013, and the test
    set newstest2014 (3,003 sentences).
    """
    sources: Sources = {
        "train": [(url, f"{stem}.{{language}}", member_lines) for url, stem in WMT14_TRAIN.items()],
        "valid": [(WMT14_VALID, "dev/newstest2013.{language}", member_lines)],
        # The files for English to German; for the other direction, source and reference have the same texts.
        "test": [(WMT14_TEST, "test-full/newstest2014-deen-{side}.{language}.sgm", _segments)],
    }
    _provide(root, _texts(root, languages, sources), [*WMT14_TRAIN, WMT14_VALID, WMT14_TEST], download)


def tatoeba(root: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (German, English, "") for each line of Tatoeba's ROOT/deu.txt, or of that file in ROOT/deu-eng.zip.

    Raises LeapformerError if both are missing, or with the number of a line without a tab.
    """
    plain = root / "deu.txt"
    if not plain.is_file() and not (root / TATOEBA).is_file():
        raise LeapformerError(f"no file {root / TATOEBA}, nor {plain.name} out of it; check the data folder")
    lines = read_lines(plain) if plain.is_file() else member_lines(root / TATOEBA, plain.name)
    for number, line in enumerate(lines, 1):
        english, tab, rest = line.partition("\t")
        if not tab:
            raise LeapformerError(f"{plain.name}, line {number}: no tab between two sentences; is it Tatoeba's file?")
        yield rest.partition("\t")[0], english, ""  # newer releases name the authors in a third column


def python_docs(root: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (English, Spanish, reason) for each message in the catalogues below ROOT, the Python documentation.

    The reason to leave a message out is "" if there is none. A message is a heading or a paragraph in reStructuredText,
    whose roles and literals stay. Raises LeapformerError if there are no messages.
    """
    count = 0
    for path in sorted(root.rglob("*.po"), key=lambda path: path.relative_to(root).as_posix()):
        for message in read_messages(path):
            english, spanish = message.texts["msgid"], message.texts.get("msgstr", "")
            reason = "damaged" if message.damaged else "fuzzy" if "fuzzy" in message.flags else ""
            if not reason and spanish in ("", english):
                reason = "the same in both languages" if spanish else "not translated"
            yield english, spanish, reason
            count += 1
    if not count:
        raise LeapformerError(f"{root} holds no messages in *.po files; give the folder of python-docs-es")


def wikitext(root: Path, size: int, download: bool) -> None:
    """Provide ROOT/wiki.{train,valid,test}.tokens of WikiText-2 or -103 (Merity et al., 2016, arXiv:1609.07843)."""
    url = WIKITEXT.format(size=size)
    names = [f"wiki.{split}.tokens" for split in WIKITEXT_SPLITS]
    archive = root / _file_name(url)
    texts: Texts = {name: partial(member_lines, archive, f"wikitext-{size}/{name}") for name in names}
    _provide(root, texts, [url], download)


def glue(root: Path, task: str, names: Iterable[str], download: bool) -> None:
    """Provide ROOT/TASK/{train,dev,test}.tsv of a GLUE task (Wang et al., 2019, arXiv:1804.07461)."""
    url = GLUE.format(archive=GLUE_ARCHIVES.get(task, task))
    archive = root / task / _file_name(url)
    texts: Texts = {name: partial(member_lines, archive, f"{task}/{name}") for name in names}
    _provide(root / task, texts, [url], download)


# gettext's catalogues: https://www.gnu.org/software/gettext/manual/html_node/PO-Files.html
_STRING = re.compile(r'(?:(msgctxt|msgid|msgid_plural|msgstr|msgstr\[\d+\])\s+)?"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


@dataclass
class Message:
    """An entry of a catalogue; `texts` are its strings by keyword: msgid, msgstr, msgctxt, msgid_plural, msgstr[0].

    It is `damaged` if one of its lines cannot be parsed.
    """

    flags: set[str] = field(default_factory=set)
    texts: dict[str, str] = field(default_factory=dict)
    damaged: bool = False


def read_messages(path: Path) -> Iterator[Message]:
    """The messages of a catalogue, without obsolete entries (#~) and without the header, whose msgid is empty.

    Raises LeapformerError if the file is not text.
    """
    return (message for message in _entries(path) if message.texts.get("msgid"))


def _entries(path: Path) -> Iterator[Message]:
    message, keyword = Message(), ""
    for line in map(str.strip, read_lines(path)):
        if not line or line.startswith("#"):
            if message.texts:  # a comment belongs to the message that follows
                yield message
                message, keyword = Message(), ""
            if line.startswith("#,"):
                message.flags.update(flag.strip() for flag in line[2:].split(","))
            continue
        match = _STRING.fullmatch(line)
        if match is None or not (match[1] or keyword):
            message.damaged = True
            continue
        if match[1] in ("msgid", "msgctxt") and "msgid" in message.texts:  # no empty line between two messages
            yield message
            message = Message()
        keyword = match[1] or keyword  # without one, the string continues the previous line's
        text = _ESCAPE.sub(lambda escaped: _ESCAPES.get(escaped[1], escaped[1]), match[2])
        message.texts[keyword] = message.texts.get(keyword, "") + text
    yield message


def _provide(root: Path, texts: Texts, urls: Sequence[str], download: bool) -> None:
    """Write the files of `texts` that are missing, from archives that are downloaded if allowed.

    Does nothing if an archive is missing and may not be downloaded: the caller then names the missing file. Raises
    LeapformerError if a text turns out to be empty.
    """
    missing = [name for name in texts if find_text(root, [name]) is None]
    absent = [url for url in urls if missing and not (root / _file_name(url)).is_file()]
    if absent and not download:
        return
    for url in absent:
        fetch(url, root / _file_name(url))
    for name in missing:
        if not write_lines(root / name, texts[name]()):
            raise LeapformerError(f"{root / name} is empty; delete the archives in {root} and download them again")


def _file_name(url: str) -> str:
    return url.rpartition("/")[2]


def _texts(root: Path, languages: Sequence[str], sources: Sources) -> Texts:
    """The texts SPLIT.LANGUAGE, each joined of the members of its split; {language} and {side} are filled in."""

    def lines(split: str, language: str) -> Iterator[str]:
        side = "src" if language == "en" else "ref"
        for address, member, read in sources[split]:
            yield from read(root / _file_name(address), member.format(language=language, side=side))

    return {f"{split}.{language}": partial(lines, split, language) for language in languages for split in sources}


def _tagged(archive: Path, member: str) -> Iterator[str]:
    """The sentences, titles and descriptions of talks, without URLs, keywords and names, which are not translated."""
    for line in member_lines(archive, member):
        text = _TITLE.sub("", line).strip()
        if not text.startswith("<"):
            yield text


def _talks(archive: Path, member: str) -> Iterator[str]:
    """The sentences of talks without titles and descriptions, with an empty line before each talk."""
    for line in member_lines(archive, member):
        text = line.strip()
        if text.startswith("<url>"):  # the first tag of each talk
            yield ""
        elif not text.startswith("<"):
            yield text


def _segments(archive: Path, member: str, pattern: re.Pattern[str] = _SEGMENT) -> Iterator[str]:
    """The sentences in a file of <seg> elements, one per line; "" for anything else that `pattern` matches."""
    for line in member_lines(archive, member):
        match = pattern.search(line)
        if match:
            yield match[1] or ""

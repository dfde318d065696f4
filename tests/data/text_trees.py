"""Tiny text data sets in the layout of the releases, with sentences of the corpus grammar."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from leapformer_fairseq.data.corpus import grammar
from leapformer_fairseq.data.releases import IWSLT14_TESTS, WMT14_TRAIN

SIZES = {"train": 60, "valid": 10, "test": 8}
TALKS = {"train": (25, 1, 34), "valid": (10,), "test": (1, 2, 2, 3)}  # sentences of each talk


def sentences(split: str, count: int | None = None) -> dict[str, list[str]]:
    """English and German sentences of a split, the same ones every time."""
    rng = np.random.default_rng([7, list(SIZES).index(split)])
    pairs = [grammar.sample(rng) for _ in range(count or SIZES[split])]
    return {"en": [pair[0] for pair in pairs], "de": [pair[1] for pair in pairs]}


def text(lines: list[str]) -> str:
    """The content of a file."""
    return "".join(f"{line}\n" for line in lines)


def multi30k_tree(root: Path, zipped: bool = True) -> Path:
    """ROOT/{train,val,test_2016_flickr}.{en,de}, with .gz if `zipped`."""
    root.mkdir(parents=True, exist_ok=True)
    for split, stem in (("train", "train"), ("valid", "val"), ("test", "test_2016_flickr")):
        for language, lines in sentences(split).items():
            path, content = root / f"{stem}.{language}", text(lines).encode()
            if zipped:
                path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
            else:
                path.write_bytes(content)
    return root


def plain_tree(root: Path) -> Path:
    """ROOT/{train,valid,test}.{en,de}."""
    root.mkdir(parents=True, exist_ok=True)
    for split in SIZES:
        for language, lines in sentences(split).items():
            (root / f"{split}.{language}").write_text(text(lines), encoding="utf-8")
    return root


def iwslt14_archive(root: Path) -> Path:
    """ROOT/de-en.tgz: talks with tags around what is said, and five files of segments to test on."""
    files = {}
    training, testing = sentences("train"), sentences("test")
    for language in ("de", "en"):
        talk = ["<url>http://talks.example/1</url>", "<keywords>talks, words</keywords>", "<title>The Talk</title>"]
        files[f"de-en/train.tags.de-en.{language}"] = text([*talk, *training[language], "", "<talkid>1</talkid>"])
        for n, name in enumerate(IWSLT14_TESTS):
            lines = testing[language][n : n + 1]
            files[f"de-en/IWSLT14.{name}.de-en.{language}.xml"] = segments(lines)
    return archive(root / "de-en.tgz", files)


def talks(split: str) -> dict[str, list[list[str]]]:
    """The sentences of a split as talks; German stands in for Spanish."""
    ends = np.cumsum(TALKS[split])
    cut = {
        name: [lines[end - size : end] for size, end in zip(TALKS[split], ends, strict=True)]
        for name, lines in sentences(split).items()
    }
    return {"es": cut["de"], "en": cut["en"]}


def iwslt14_talks_archive(root: Path) -> Path:
    """ROOT/es-en.tgz: talks to train on behind their tags, one file of segments to validate, three to test on."""
    files = {}
    for language in ("es", "en"):
        lines = []
        for n, talk in enumerate(talks("train")[language]):
            lines += [f"<url>http://talks.example/{language}/{n}</url>", "<keywords>talks, words</keywords>"]
            lines += ["<speaker>Ann</speaker>", f"<talkid>{n}</talkid>", f"<title> Ann: Talk {n} </title>"]
            lines += ["<description>Ann talks.</description>", *(f" {line} " for line in talk)]
        files[f"es-en/train.tags.es-en.{language}"] = text(lines)
        one, *several = talks("valid")[language] + talks("test")[language]
        years = {"dev2010": [one], "tst2010": several[:2], "tst2011": several[2:3], "tst2012": several[3:]}
        for year, of_year in years.items():
            content = "".join(segments(talk, f'<doc docid="{n}" genre="lectures">') for n, talk in enumerate(of_year))
            files[f"es-en/IWSLT14.TED.{year}.es-en.{language}.xml"] = f"<mteval>\n\n{content}</mteval>\n"
    return archive(root / "es-en.tgz", files)


def wmt14_archives(root: Path) -> Path:
    """ROOT/*.tgz as on statmt.org."""
    for n, (url, stem) in enumerate(WMT14_TRAIN.items()):
        training = {language: lines[20 * n : 20 * n + 20] for language, lines in sentences("train").items()}
        archive(root / url.rpartition("/")[2], {f"{stem}.{name}": text(lines) for name, lines in training.items()})
    valid = sentences("valid")
    archive(root / "dev.tgz", {f"dev/newstest2013.{name}": text(lines) for name, lines in valid.items()})
    sides = {f"test-full/newstest2014-deen-{side}.{name}.sgm": name for side in ("src", "ref") for name in ("en", "de")}
    archive(root / "test-full.tgz", {path: segments(sentences("test")[name]) for path, name in sides.items()})
    return root


def wikitext_tree(root: Path, splits: tuple[str, ...] = tuple(SIZES), suffix: str = ".txt") -> Path:
    """ROOT/{train,valid,test}.txt: articles of English sentences with headings, empty lines and <unk>."""
    root.mkdir(parents=True, exist_ok=True)
    for split in splits:
        lines = []
        for n, sentence in enumerate(sentences(split, 40)["en"]):
            lines += [" ", f" = Article {n} = ", " "] if n % 10 == 0 else []
            lines.append(f" {sentence.replace(' the ', ' <unk> ')} . ")
        name = f"{split}.txt" if suffix == ".txt" else f"wiki.{split}{suffix}"
        (root / name).write_text(text(lines), encoding="utf-8")
    return root


def tatoeba_archive(root: Path, count: int = 60) -> Path:
    """ROOT/deu-eng.zip: a line for each pair, a second translation of every fifth English sentence, the first again."""
    root.mkdir(parents=True, exist_ok=True)
    lines = []
    for n, (english, german) in enumerate(zip(*sentences("train", count).values(), strict=True)):
        lines += [f"{english}\t{german}"] + ([f"{english.upper()}\tAlso, {german}"] if n % 5 == 0 else [])
    with zipfile.ZipFile(root / "deu-eng.zip", "w") as opened:
        opened.writestr("deu.txt", text([*lines, lines[0]]))
        opened.writestr("_about.txt", "** Info **\n")
    return root


def python_docs_tree(root: Path, count: int = 60) -> Path:
    """ROOT/{a,library/b}.po: message catalogues; German stands in for Spanish. A fuzzy, an untranslated, an obsolete,
    a damaged message and one that is the same in both languages are in between.
    """
    pairs = [f'#: ../Doc/x.rst:{n}\nmsgid "{one}"\nmsgstr ""\n"{other}"\n' for n, (one, other) in enumerate(
        zip(*sentences("train", count).values(), strict=True))]  # fmt: skip
    head = '# Copyright\nmsgid ""\nmsgstr ""\n"Project-Id-Version: Python\\n"\n'
    odd = [
        '#, fuzzy, python-format\nmsgid "%s is fuzzy"\nmsgstr "no sé"\n', 'msgid "not yet"\nmsgstr ""\n',
        '#~ msgid "old"\n#~ msgstr "viejo"\n', 'msgid "* (asterisk)"\nmsgstr * (asterisco)"\n',
        'msgid "``len``"\nmsgstr "``len``"\n',
    ]  # fmt: skip
    (root / "library").mkdir(parents=True)
    (root / "a.po").write_text("\n".join([head, *pairs[::2]]), encoding="utf-8")
    (root / "library/b.po").write_text("\n".join([head, *odd, *pairs[1::2]]), encoding="utf-8")
    return root


def segments(lines: list[str], head: str = "<doc>") -> str:
    """As in the sgm and xml files of evaluations."""
    return text(
        [head, "<title>Talk</title>", *(f'<seg id="{n}"> {line} </seg>' for n, line in enumerate(lines, 1)), "</doc>"]
    )


def archive(path: Path, files: Mapping[str, str]) -> Path:
    """A .tgz of text files; returns its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as opened:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content.encode())
            opened.addfile(entry, io.BytesIO(content.encode()))
    return path.parent

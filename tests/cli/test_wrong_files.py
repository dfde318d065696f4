"""Every command that reads a file, given another one: a single line that names it, and no trace of the code."""

from __future__ import annotations

import shlex

import pytest

from leapformer_fairseq.cli.main import main
from tests.cli.test_refusals import places  # noqa: F401
from tests.covering import in_turn
from tests.scoring.pictures.test_maps import data  # noqa: F401

CONTENTS = {
    "missing": None,
    "folder": "",
    "empty": b"",
    "bytes": b"\x89\x00\xff\xfe\x80 no file of any kind\n" * 40,
    "text": b"some words of a text\nand some more\n",
    "json": b'{"some": ["other", "object"]}\n',
}
#: command lines with `WRONG` in the place of a file or folder, and kinds of content that may well serve there
COMMANDS: dict[str, tuple[str, ...]] = {
    "score WRONG --references {data}/target": ("json",),  # a text of one line, as the references are
    "score {log} --references WRONG": ("json",),
    "score {evaluated} --text WRONG": ("text", "json"),
    "compare WRONG {log} --references {data}/target": ("json",),
    "compare {log} WRONG --references {data}/target": ("json",),
    "compare {log} {other} --references WRONG": ("json",),
    "table WRONG": (),
    "report WRONG": (),
    "plot WRONG --out o.png": (),
    "average --inputs WRONG --last 1 --output o.pt": (),
    "maps --path WRONG --input {data}/a.wav --out o": (),
    "maps --path {st} --input WRONG.wav --out o": (),
    "maps --path {st} --data WRONG --input {data}/a.wav --out o": (),
    "export --path WRONG --out o": (),
    "export --path {st} --data WRONG --out o": (),
    "export --path {st} --data {data} --config-yaml ../WRONG --out o": (),
    "stream {data}/a.wav --checkpoint WRONG": (),
    "stream WRONG --checkpoint {model}": (),
    "stream {data}/a.wav --checkpoint {st} --data-root WRONG": (),
    "stream {data}/a.wav --checkpoint {model} --segment sentence --sentence-ends WRONG": (),
    "serve --checkpoint WRONG --port 0": (),
    "simulate --checkpoint WRONG {lists} --out o": (),
    "simulate --checkpoint {model} --source WRONG --target {data}/target --out o": (),
    "simulate --checkpoint {model} --source {data}/source --target WRONG --out o": ("json",),
    "simulate --checkpoint {model} --talks WRONG --out o": (),
    "curve --checkpoints WRONG {lists} --out o": (),
    "curve --checkpoints {model} --source WRONG --target {data}/target --out o": (),
    "sentence-ends --train WRONG --valid {data}/some.tsv --out o.npz": (),
    "sentence-ends --train {data}/two.tsv --valid WRONG --out o.npz": (),
    "tts --path WRONG --text a --out o": (),
    "eval-stream {text}/lm --path WRONG": (),
    "score-speech WRONG": (),
    "linearize --path WRONG --attention leap --out o": (),
    "linearize --path {teacher} --data WRONG --attention leap --out o": (),
    "ablate --out o -- train WRONG --task translation --arch leapformer_nmt_tiny --max-update 2 --max-tokens 500 "
    "--optimizer adam --lr 1e-3": (),
    "sparsefinder extract {mt} --path WRONG --out o": (),
    "sparsefinder fit WRONG --out o": (),
    "prepare text WRONG --pair en-de --out o": (),
    "prepare speech --train WRONG --dev {data}/some.tsv --test {data}/some.tsv --out o": (),
    "prepare wikitext2 WRONG --out o": (),
    "prepare ljspeech WRONG --out o": (),
    "prepare mustc WRONG --out o": (),
    "prepare talks WRONG --out o": (),
    "train WRONG --task translation --arch leapformer_nmt_tiny --max-tokens 500 --max-update 1": (),
    "train WRONG --task language_modeling --arch leapformer_lm_tiny --max-tokens 500 --max-update 1": (),
    "train {mt} {training} --finetune-from-model WRONG": (),
    "train {mt} {training} --restore-file WRONG": (),
    "train {mt} {training} --save-dir WRONG": (
        "missing",
        "folder",
    ),
    "generate WRONG --path {teacher}": (),
    "generate {mt} --path WRONG": (),
    "generate {mt} --path {teacher} --gen-subset WRONG": (),
    "validate {mt} --path WRONG --task translation --max-tokens 500": (),
    "eval-lm WRONG --path {teacher}": (),
    "interactive {mt} --path {teacher} --input WRONG": ("empty", "text", "json"),
    "interactive WRONG --path {teacher}": (),
    "preprocess --source-lang en --target-lang de --trainpref WRONG --destdir o": ("empty", "text", "json"),
    "preprocess --source-lang en --target-lang de --trainpref {text}/train --srcdict WRONG --destdir o": ("empty",),
}


@pytest.fixture(scope="module")
def everything(places, data):  # noqa: F811
    for name in ("log", "other"):
        (data / f"{name}.txt").write_text("S-0\ta\nT-0\tw1\nH-0\t-1\tw1\nD-0\t-1\tw1\nP-0\t-1\n")
    (data / "eval.log").write_text("Evaluated 11 tokens / Loss (base 2): 3.0, Perplexity: 8.0\n")
    head, row = (data / "some.tsv").read_text().splitlines()
    (data / "two.tsv").write_text(f"{head}\n{row}\n{row}\n")
    training = "--arch leapformer_nmt_tiny --max-tokens 500 --max-update 1 --optimizer adam --lr 1e-3 --num-workers 0"
    places = {**places, "training": training}
    return {**places, **{name: data / f"{name}.txt" for name in ("log", "other")}, "evaluated": data / "eval.log"}


def wrong(folder, content) -> None:
    path = folder / "WRONG"
    if content == "":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
        for more in (".en", ".de", ".wav"):
            (folder / f"WRONG{more}").write_bytes(content)


@in_turn(lambda words, kind: kind not in COMMANDS[words], words=list(COMMANDS), kind=list(CONTENTS))
def test_one_line_names_it(words, kind, everything, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    wrong(tmp_path, CONTENTS[kind])
    status = main(shlex.split(words.format(**everything)))
    err = capfd.readouterr().err
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    assert status == 2 and last.startswith("leapformer: error: "), last
    assert len(last) < 900 and ("WRONG" in last or "--" in last)

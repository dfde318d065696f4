"""Only a line feed ends a line, whoever reads it, and two files that belong together have as many lines."""

import ast
import io
import json
from pathlib import Path

import pytest

import leapformer_fairseq
from leapformer_fairseq.data import labelled, manifests, recordings, speech_releases, tables
from leapformer_fairseq.models import length_predictors
from leapformer_fairseq.runtime.commands import tts
from leapformer_fairseq.runtime.formats import jsonl
from leapformer_fairseq.scoring import outputs, speech
from leapformer_fairseq.scoring.outputs import read_hypotheses, score_generation
from leapformer_fairseq.scoring.systems import read_systems
from leapformer_fairseq.simul.simulate import read_utterances
from leapformer_fairseq.studies.sparsefinder import tags
from leapformer_fairseq.support.errors import LeapformerError
from leapformer_fairseq.support.lines import lines_or_text, read_lines

NO_ENDS = {
    "CR": "\r", "VT": "\v", "FF": "\f", "FS": "\x1c", "GS": "\x1d", "RS": "\x1e", "NEL": "\x85", "LS": "\u2028",
    "PS": "\u2029",
}  # fmt: skip
CODE = Path(leapformer_fairseq.__file__).parent


def _sentences(path: Path) -> list[str]:
    return outputs.read_references(path)


def _columns(read):
    """A reader of one text each line, used on a table with more columns."""

    def lines(path: Path) -> list[str]:
        path.write_text("id\ttext\n" + "".join(f"{i}\t{line}\n" for i, line in enumerate(_written(path))), newline="")
        return [row["text"] for row in read(path)]

    return lines


def _written(path: Path) -> list[str]:
    return path.read_bytes().decode().removesuffix("\n").split("\n")


def _rows_of_tables(path: Path) -> list[dict[str, str]]:
    return [row for _, row in tables._rows(path, {**dict.fromkeys(tables.NEEDED, "text"), "audio": "id"})]


def _hypotheses(path: Path) -> list[str]:
    path.write_text("".join(f"D-{i}\t-1\t{line}\n" for i, line in enumerate(_written(path))), newline="")
    return list(read_hypotheses([path]).values())


def _json(path: Path) -> list[str]:
    lines = (json.dumps({"text": line}, ensure_ascii=False) for line in _written(path))
    path.write_text("".join(f"{line}\n" for line in lines), newline="")
    return [entry["text"] for _, entry in jsonl.read_objects(path)]


def _tagged(path: Path) -> list[str]:
    path.write_text("".join(f"{line}\tNOUN\n" for line in _written(path)), newline="")
    (sentence,) = tags.read_tags(str(path))
    return [word for word, _ in sentence]


def _utterances(path: Path) -> list[str]:
    sound = path.with_name("sound.wav")
    sound.touch()
    path.with_name("source").write_text(f"{sound}\n" * len(_written(path)))
    return [one.reference for one in read_utterances(path.with_name("source"), path)]


def _segments(path: Path) -> list[recordings.Recording]:
    rows = "".join("- {wav: a.wav, offset: 0, duration: 1}\n" for _ in _written(path))
    path.with_name("segments.yaml").write_text(rows)
    return speech_releases.read_segments(path.parent, path.with_name("segments.yaml"), path, path)


def _only(systems):
    (system,) = systems.values()
    return system


READERS = {
    "lines": lambda path: list(read_lines(path)),
    "sentences": _sentences,
    "references": lambda path: (
        _only(read_systems([str(_generated(path.with_name("generate-x.txt"), 3))], path)).references
    ),
    "hypotheses": _hypotheses,
    "jsonl": _json,
    "tags": _tagged,
    "utterances": _utterances,
    "mustc": lambda path: [one.target for one in _segments(path)],
    "pictures": lambda path: lines_or_text(str(path)),
    "manifest": _columns(lambda path: manifests.read_manifest(path)),
    "covost": _columns(lambda path: recordings.read_table(path, ("id", "text"))),
    "tables": _columns(_rows_of_tables),
}


def _generated(path: Path, count: int) -> str:
    path.write_text("".join(f"D-{i}\t-1\tline {i}\n" for i in range(count)))
    return str(path)


@pytest.mark.parametrize("character", NO_ENDS.values(), ids=NO_ENDS)
@pytest.mark.parametrize("reader", READERS)
def test_only_a_line_feed_ends_a_line(reader, character, tmp_path):
    path = tmp_path / "text.txt"
    wanted = ["first", f"a{character}b", "last"]
    path.write_text("\n".join(wanted) + "\n", newline="", encoding="utf-8")
    assert READERS[reader](path) == wanted


@pytest.mark.parametrize("reader", ["lines", "sentences", "utterances", "tags", "manifest", "covost", "tables"])
def test_a_carriage_return_before_a_line_feed_belongs_to_the_end(reader, tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"first\r\nsecond\r\nlast\r\n")
    if reader == "tags":
        path.write_bytes(b"first\tA\r\nsecond\tA\r\nlast\tA\r\n")
        assert tags.read_tags(str(path)) == [[("first", "A"), ("second", "A"), ("last", "A")]]
    elif reader in ("manifest", "covost", "tables"):
        path.write_bytes(b"id\ttext\r\n0\tfirst\r\n1\tlast\r\n")
        read = {
            "manifest": lambda: manifests.read_manifest(path),
            "covost": lambda: recordings.read_table(path, ("id", "text")),
            "tables": lambda: _rows_of_tables(path),
        }[reader]
        assert [row["text"] for row in read()] == ["first", "last"]
    else:
        assert READERS[reader](path) == ["first", "second", "last"]


BAD = b"good\nb\xe4d\n"
NO_UTF8 = {
    "lines": lambda path: list(read_lines(path)),
    "sentences": _sentences,
    "references": lambda path: score_generation([_generated(path.with_name("generate-x.txt"), 2)], path),
    "compared": lambda path: read_systems([str(_generated(path.with_name("generate-x.txt"), 2))], path),
    "jsonl": lambda path: jsonl.read_objects(path),
    "tags": lambda path: tags.read_tags(str(path)),
    "utterances": lambda path: read_utterances(path, path),
    "pictures": lambda path: lines_or_text(str(path)),
    "manifest": lambda path: list(manifests.read_manifest(path)),
    "covost": lambda path: recordings.read_table(path, ("good",)),
    "lengths": lambda path: list(length_predictors._read_table(path, None)),
    "spoken": lambda path: speech._sentences(path),
    "tts": lambda path: tts._lines(str(path)),
    "glue": lambda path: labelled.read_examples(path, labelled.find_task("SST-2")),
}


@pytest.mark.parametrize("reader", NO_UTF8)
def test_what_is_not_utf8_is_one_line_with_file_line_byte_and_remedy(reader, tmp_path):
    path = tmp_path / "text.txt"
    starts = {
        "jsonl": b"{}", "tags": b"good\tA", "lengths": b"", "glue": b"sentence\tlabel",
        "spoken": "\t".join(speech.COLUMNS).encode(),
    }  # fmt: skip
    path.write_bytes(BAD.replace(b"good", starts.get(reader, b"good")))
    with pytest.raises(LeapformerError) as error:
        NO_UTF8[reader](path)
    said = str(error.value)
    assert f"{path}, line 2, is not UTF-8 (byte 0xe4 at 2)" in said and "; convert it" in said and "\n" not in said


@pytest.mark.parametrize("lines", [5, 39, 41])
def test_fewer_or_more_references_are_an_error_with_both_counts(lines, tmp_path):
    generated, references = _generated(tmp_path / "generate-test.txt", 40), tmp_path / "references"
    references.write_text("a line\n" * lines)
    for score in (
        lambda: score_generation([generated], references),
        lambda: read_systems([str(generated)], references),
    ):
        with pytest.raises(LeapformerError) as error:
            score()
        assert "40" in str(error.value) and f"{lines}" in str(error.value)


def test_a_stream_is_read_as_a_file():
    from leapformer_fairseq.support.lines import decoded

    assert list(decoded(io.BytesIO(b"a\rb\r\n\xe2\x80\xa8\nlast"), "input")) == ["a\rb", "\u2028", "last"]
    with pytest.raises(LeapformerError, match="input, line 1, is not UTF-8"):
        list(decoded(io.BytesIO(b"\xff"), "input"))


# files of the system and messages of programs, which are no text of a user, and fairseq's cuts of a file, in bytes
MACHINE = {
    "support/signature.py", "support/memory.py", "support/errors.py", "compat/errors_explained.py",
    "attention/ops/cpu/__init__.py", "studies/benchmarks/gpu.py", "studies/benchmarks/gpu_cases.py",
    "scoring/quality.py", "scoring/alignment.py", "support/options.py", "scoring/figure.py", "studies/trainings.py",
    "cli/score_talks.py",
    "compat/data.py",
}  # fmt: skip


def test_there_is_no_other_reader_of_lines():
    found = set()
    for path in CODE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            called = node.func.attr
            splits = called == "split" and [ast.unparse(one) for one in node.args] == ["'\\n'"]
            tables = called in ("reader", "DictReader") and ast.unparse(node.func.value) == "csv"
            if called in ("splitlines", "readlines", "readline") or splits or tables:
                found.add(str(path.relative_to(CODE)))
    assert found - MACHINE == {"support/lines.py"}

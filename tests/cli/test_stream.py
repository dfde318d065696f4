"""`leapformer stream` on a fake model: what it prints, how it ends, and every input that it refuses."""

from __future__ import annotations

import io
import itertools
import json
import re
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
import soundfile

from leapformer_fairseq.cli import main as cli
from leapformer_fairseq.runtime.audio import read_blocks
from leapformer_fairseq.runtime.commands import demo
from leapformer_fairseq.runtime.commands import stream as command
from leapformer_fairseq.runtime.formats.streamlog import StreamLogWriter, read_stream_log
from leapformer_fairseq.runtime.formats.talks import read_talks
from leapformer_fairseq.runtime.simul.stream import DecodingOptions, TranslationStream
from leapformer_fairseq.simul import loading
from tests.simul.conftest import detokenizer, make_system, speech, spm_model, symbols  # noqa: F401  (fixtures)

NEEDED = ["--checkpoint", "x", "--data-root", "x", "--max-len-b", "9", "--lead-ms", "200"]
# of the recording below: to 400 ms after the last sound, in whole 40 ms, and from 200 ms before the next sound
FIRST, SECOND = slice(0, 73 * 640), slice(56_000 - 3_200, None)
SUMMARY = r"([\d.]+) s of audio, segments: (\d+); [\d.]+ s of computation .*, real-time factor [\d.]+\n$"


@pytest.fixture
def system(monkeypatch, make_system):  # noqa: F811
    made = make_system(2, 7, -1e4)
    monkeypatch.setattr(loading, "load_system", lambda *args: made)
    return made


@pytest.fixture
def recording(tmp_path: Path, speech) -> tuple[Path, np.ndarray]:  # noqa: F811
    """Two sentences with a pause of a second between them."""
    samples = np.concatenate([speech(2.5, 1), np.zeros(16_000, np.float32), speech(2.5, 2)])
    soundfile.write(tmp_path / "talk.wav", samples, 16_000, subtype="FLOAT")
    return tmp_path / "talk.wav", samples


def text_alone(system, samples: np.ndarray) -> str:
    stream = TranslationStream(system, DecodingOptions(max_len_b=9))
    stream.push(samples)
    stream.advance(source_finished=True)
    return stream.flush(final=True)


def standard_input(monkeypatch, data: bytes, terminal: bool = False) -> None:
    fake = types.SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(data)), isatty=lambda: terminal)
    monkeypatch.setattr("sys.stdin", fake)


def test_a_line_for_each_segment_and_a_summary(system, recording, capsys) -> None:
    path, samples = recording
    assert cli.main(["stream", str(path), *NEEDED]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [text_alone(system, samples[FIRST]), text_alone(system, samples[SECOND])]
    assert re.match(SUMMARY, err).groups() == ("6.0", "2")


def test_one_segment_is_what_the_agent_writes(system, recording, capsys) -> None:
    path, samples = recording
    assert cli.main(["stream", str(path), *NEEDED, "--segment", "seconds"]) == 0
    assert capsys.readouterr().out == text_alone(system, samples) + "\n"


def test_json(system, recording, capsys) -> None:
    path, samples = recording
    assert cli.main(["stream", str(path), *NEEDED, "--json", "--policy", "wait-k"]) == 0
    *events, last = map(json.loads, capsys.readouterr().out.splitlines())
    final = [event for event in events if event["final"]]
    assert {event["segment"] for event in events} == {1, 2} and sum(event["ends"] for event in events) == 2
    assert " ".join(e["text"] for e in final if e["segment"] == 1 and e["text"]) == text_alone(system, samples[FIRST])
    assert any(event["text"] for event in events if not event["final"])
    assert [event["audio_s"] for event in events] == sorted(event["audio_s"] for event in events)
    assert last["summary"]["audio_s"] == 6.0 and last["summary"]["decoder_s"] > 0
    assert cli.main(["stream", str(path), *NEEDED, "--json", "--no-drafts"]) == 0
    assert all(json.loads(line).get("final", True) for line in capsys.readouterr().out.splitlines())


def test_raw_samples_on_standard_input(monkeypatch, system, recording, capsys) -> None:
    _, samples = recording
    data = (samples * 32767).astype("<i2")
    standard_input(monkeypatch, data.tobytes() + b"\x01")  # half a sample more
    assert cli.main(["stream", "-", *NEEDED, "--segment", "seconds"]) == 0
    assert capsys.readouterr().out == text_alone(system, data.astype(np.float32) / 32768) + "\n"


def test_ctrl_c_keeps_the_text_so_far(monkeypatch, system, recording, capsys) -> None:
    path, _ = recording

    def interrupted(*args):
        blocks = read_blocks(*args)
        for _ in range(40):
            yield next(blocks)
        raise KeyboardInterrupt

    assert cli.main(["stream", str(path), *NEEDED]) == 0
    whole = capsys.readouterr().out
    monkeypatch.setattr(command, "read_blocks", interrupted)
    assert cli.main(["stream", str(path), *NEEDED]) == 130
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == whole.splitlines()[0] and out.endswith("\n")
    assert re.match(SUMMARY, err).groups() == ("4.0", "2"), "what was held back is written, too"


def test_realtime_waits_for_the_speech(monkeypatch, system, recording) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "monotonic", lambda: 100 + sum(slept))
    monkeypatch.setattr(time, "sleep", slept.append)
    assert cli.main(["stream", str(recording[0]), *NEEDED, "--realtime"]) == 0
    assert sum(slept) == pytest.approx(6.0) and len(slept) == 60


def test_nobody_reads_any_more(monkeypatch, system, recording) -> None:
    write, calls = command.Lines._write, []

    def broken_once(self, text: str) -> None:
        calls.append(text)
        if len(calls) == 1:
            raise BrokenPipeError
        write(self, text)

    monkeypatch.setattr(command.Lines, "_write", broken_once)
    monkeypatch.setattr(command.os, "dup2", lambda *_: None)
    assert cli.main(["stream", str(recording[0]), *NEEDED]) == 0
    assert len(calls) <= 2


# -- what is refused, or gives nothing --------------------------------------------------------------------------------


def wav(path: Path, samples: np.ndarray, rate: int = 16_000) -> Path:
    soundfile.write(path, samples, rate, subtype="FLOAT")
    return path


@pytest.mark.parametrize(
    ("samples", "rate", "message"),
    [
        (np.zeros((9000, 2)), 16_000, "has 2 channels, mono is needed"),
        (np.zeros(9000), 44_100, "is sampled at 44100 Hz, 16000 Hz is needed"),
        (np.zeros(0), 16_000, "holds no samples"),
        (np.where(np.arange(20_000) == 18_000, np.nan, 0.1), 16_000, "at 1.1 s, has samples of nan"),
        (np.full(9000, 3e4), 16_000, "has samples of 30000; they must be floats in"),
    ],
)
def test_audio_that_cannot_be_translated(system, tmp_path, capsys, samples, rate: int, message: str) -> None:
    assert cli.main(["stream", str(wav(tmp_path / "a.wav", samples, rate)), *NEEDED]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_files_that_are_no_audio(system, tmp_path, capsys) -> None:
    (tmp_path / "a.wav").write_bytes(b"RIFF and nothing else")
    (tmp_path / "a.raw").write_bytes(bytes(6400))
    for name, message in (("a.wav", "cannot be read"), ("a.raw", "cannot be read"), ("b.wav", "no audio file at")):
        assert cli.main(["stream", str(tmp_path / name), *NEEDED]) == 2
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1


@pytest.mark.parametrize("samples", [np.zeros(200), np.zeros(50_000), np.ones(40_000), np.tile([1.0, -1.0], 20_000)])
def test_short_silent_and_clipped_audio(system, tmp_path, capsys, samples) -> None:
    assert cli.main(["stream", str(wav(tmp_path / "a.wav", samples)), *NEEDED]) == 0
    out, err = capsys.readouterr()
    assert out.rstrip("\n") == text_alone(system, samples.astype(np.float32)) and re.match(SUMMARY, err)


@pytest.mark.parametrize(
    ("data", "terminal", "options", "message"),
    [
        (b"RIFF....WAVE", False, [], "standard input is WAV: standard input cannot be read as audio"),
        (b"", True, [], "standard input is no audio; pipe it in"),
        (b"", False, ["--realtime"], "--realtime paces a recording"),
        (b"", False, ["--carry", "encoder"], "--carry encoder: this encoder sees whole utterances"),
        (b"", False, ["--pause-ms", "3"], "--pause-ms 3"),
        (b"", False, ["--device", "cuda:7"], "--device cuda:7"),
    ],
)
def test_standard_input_and_options(monkeypatch, system, capsys, data, terminal, options, message) -> None:
    standard_input(monkeypatch, data, terminal)
    assert cli.main(["stream", "-", *NEEDED, *options]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_no_input_gives_no_text(monkeypatch, system, capsys) -> None:
    standard_input(monkeypatch, b"\x01")
    assert cli.main(["stream", "-", *NEEDED]) == 0
    out, err = capsys.readouterr()
    assert out == "" and "0.0 s of audio, segments: 0" in err and "real-time factor unknown" in err


# -- the terminal -----------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """Obeys what the screen writes: return, up, clear below, colours; `rows` is what is seen."""

    def isatty(self) -> bool:
        return True

    @property
    def rows(self) -> list[str]:
        rows, row, column = [""], 0, 0
        for up, code, end, character in re.findall(r"\x1b\[(\d+)A|\x1b\[(\d*[Jm])|(\n|\r)|(.)", self.getvalue()):
            if up:
                row -= int(up)
            elif code == "J":
                rows[row:] = [rows[row][:column]]
            elif end:
                row, column = row + (end == "\n"), 0
                rows += [""] * (row + 1 - len(rows))
            elif character:
                rows[row] = rows[row][:column] + character + rows[row][column + 1 :]
                column += 1
        return rows


@pytest.mark.parametrize("width", [14, 30, 200])
def test_a_terminal_shows_all_text_once(monkeypatch, system, recording, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    path, samples = recording
    assert cli.main(["stream", str(path), *NEEDED]) == 0
    lines = [text_alone(system, samples[FIRST]), text_alone(system, samples[SECOND])]
    expected = [line[start:stop] for line in lines for start, stop in command.rows_of(line, width - 1)]
    assert terminal.rows == [*expected, ""]
    assert "6.0 s heard," in terminal.getvalue()
    assert re.search(r"[a-z]\x1b\[90m \w+\x1b\[0m\n", terminal.getvalue())  # a draft behind final text


def test_rows_break_at_spaces_and_count_cells() -> None:
    def rows(text: str, width: int) -> list[str]:
        return [text[start:stop] for start, stop in command.rows_of(text, width)]

    assert rows("", 9) == []
    assert rows("the quick brown fox", 9) == ["the quick", "brown fox"]
    assert rows("a verylongword b", 6) == ["a", "verylo", "ngword", "b"]
    assert rows("你好世界", 5) == ["你好", "世界"]
    assert rows("你好", 1) == ["你", "好"]
    assert rows("e\u0301e\u0301", 2) == ["e\u0301e\u0301"]


# -- a log for `leapformer score` --------------------------------------------------------------------------------------


def log_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("drafts", [False, True])
def test_a_log_says_what_was_shown(system, recording, tmp_path, capsys, drafts) -> None:
    """The text that a log leaves is the text of the command; drafts that were taken back are deletions in it."""
    path, _ = recording
    log = tmp_path / "log.jsonl"
    options = ["--log", str(log), *(["--json"] if drafts else [])]
    assert cli.main(["stream", str(path), *NEEDED, *options]) == 0
    out = capsys.readouterr().out
    if drafts:
        events = [event for event in map(json.loads, out.splitlines()) if "text" in event]
        out = " ".join(event["text"] for event in events if event["final"])
    loaded, begun, *chunks = log_of(log)
    assert list(loaded) == ["model_loading_time"] and begun["metadata"] == {"wav_name": str(path)}
    (talk,) = read_stream_log(log, "word")
    assert list(talk.units) == out.split()
    assert bool(talk.effort.erased) == drafts and any(chunk["deleted_tokens"] for chunk in chunks) == drafts
    assert [chunk["total_audio_processed"] for chunk in chunks] == pytest.approx([*np.arange(1, 61) / 10, 6.0])
    assert talk.source_length == 6000 and 0 < sum(talk.effort.chunks_s) < 60
    assert list(talk.delays) == sorted(talk.delays) and talk.delays[0] >= (400 if drafts else 1720)


def test_drafts_come_early_and_final_words_keep_their_time(system, recording, tmp_path) -> None:
    path, _ = recording
    times = []
    for number, options in enumerate((["--json"], ["--json", "--no-drafts"])):
        log = tmp_path / f"{number}.jsonl"
        assert cli.main(["stream", str(path), *NEEDED, "--log", str(log), *options]) == 0
        (talk,) = read_stream_log(log, "word")
        times.append(talk.delays)
    assert all(early <= late for early, late in zip(*times, strict=True)) and sum(times[0]) < sum(times[1])


def test_omnistevals_format_has_the_same_words(system, recording, tmp_path) -> None:
    path, _ = recording
    logs = {form: tmp_path / form for form in ("simulstream", "omnisteval")}
    for form, log in logs.items():
        assert cli.main(["stream", str(path), *NEEDED, "--json", "--log", str(log), "--log-format", form]) == 0
    (one,), (other,) = read_stream_log(logs["simulstream"], "word"), read_talks(logs["omnisteval"], "word")
    assert (one.units, one.delays, one.source_length) == (other.units, other.delays, other.source_length)
    assert other.recording == str(path)
    assert all(after > before for before, after in zip(other.delays, other.aware["CA"], strict=True))


def test_an_interrupted_log_has_every_word_and_no_draft(monkeypatch, system, recording, tmp_path, capsys) -> None:
    def interrupted(*args):
        yield from itertools.islice(read_blocks(*args), 18)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "read_blocks", interrupted)
    assert cli.main(["stream", str(recording[0]), *NEEDED, "--json", "--log", str(tmp_path / "log")]) == 130
    events = [event for event in map(json.loads, capsys.readouterr().out.splitlines()) if "text" in event]
    (talk,) = read_stream_log(tmp_path / "log", "word")
    assert list(talk.units) == " ".join(event["text"] for event in events if event["final"]).split()
    assert events[-1]["final"] and not all(event["final"] for event in events)


def test_a_log_is_never_appended_to(system, recording, tmp_path, capsys) -> None:
    log = tmp_path / "log.jsonl"
    arguments = ["stream", str(recording[0]), *NEEDED, "--log", str(log)]
    assert cli.main(arguments) == 0
    before = log.read_bytes()
    capsys.readouterr()
    assert cli.main(arguments) == 2
    err = capsys.readouterr().err
    assert "exists, and two runs in a log are read as one; delete it" in err and err.count("\n") == 1
    assert log.read_bytes() == before
    arguments[-1] = str(tmp_path / "nowhere" / "log")
    assert cli.main(arguments) == 2
    assert "cannot be written: No such file" in capsys.readouterr().err


def test_a_log_of_characters(system, recording, tmp_path, capsys) -> None:
    log = tmp_path / "log.jsonl"
    assert cli.main(["stream", str(recording[0]), *NEEDED, "--unit", "char", "--log", str(log)]) == 0
    (talk,) = read_stream_log(log, "char")
    assert "".join(talk.units) == capsys.readouterr().out.replace("\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_writes_what_was_held_back_and_closes_the_log(number, tmp_path) -> None:
    """While audio is waited for; the text is that of the audio so far."""
    samples, _ = soundfile.read(demo.FOLDER / json.loads(demo.EXAMPLE.read_text())["audio"], dtype="int16")
    program = [sys.executable, "-m", "leapformer_fairseq.cli.main", "stream", "-", "--checkpoint", str(demo.MODEL)]
    whole = subprocess.run(program, input=samples.tobytes(), capture_output=True, timeout=60)
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    streaming = subprocess.Popen([*program, "--log", str(tmp_path / "log")], **pipes)
    streaming.stdin.write(samples.tobytes())
    streaming.stdin.flush()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:  # until it is heard, as far as nothing more has to come for that
        time.sleep(0.1)
        if (tmp_path / "log").is_file() and (tmp_path / "log").read_text().count("\n") > 3:
            break
    streaming.send_signal(number)
    out, err = streaming.communicate(timeout=20)
    assert streaming.returncode == 128 + number and b"s of audio" in err and b"Traceback" not in err
    assert out.decode().split() == whole.stdout.decode().split() != []
    (talk,) = read_stream_log(tmp_path / "log", "word")
    assert list(talk.units) == whole.stdout.decode().split()


def test_a_full_disk_ends_the_log_and_not_the_translation(monkeypatch, system, recording, tmp_path, capsys, caplog):
    assert cli.main(["stream", str(recording[0]), *NEEDED]) == 0
    whole, written = capsys.readouterr().out, list[int]()

    def full(self, stream, chunk):
        written.append(stream)
        if len(written) > 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(StreamLogWriter, "add", full)
    assert cli.main(["stream", str(recording[0]), *NEEDED, "--log", str(tmp_path / "log")]) == 0
    assert capsys.readouterr().out == whole and len(written) == 4
    assert "log ends here (No space left on device); the translation goes on" in caplog.text

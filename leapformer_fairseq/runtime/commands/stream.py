"""`leapformer stream`: translate a recording or standard input live in the terminal."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import threading
import time
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from io import BufferedReader
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TextIO, cast

from ...support.errors import LeapformerError
from ...support.options import DEVICE, choice
from ..audio import SAMPLE_RATE, read_blocks, read_pcm
from ..simul.live import LoadSessions, load_sessions
from ..simul.options import SEGMENT_OPTIONS, SYSTEM_OPTIONS, own_options
from ..simul.record import LOG_FORMATS, Recorder

if TYPE_CHECKING:
    import numpy as np

    from ..simul.session import Event, Session

BLOCK = SAMPLE_RATE // 10  # samples of a recording that are read at once; what is written does not depend on it
CLEAR, GREY, PLAIN = "\x1b[J", "\x1b[90m", "\x1b[0m"
DRAFT_ROWS = 3  # of the terminal, at most


OPTIONS = f"""
audio FILE|-            16 kHz mono recording; - reads raw 16-bit little-endian PCM as it arrives
{SYSTEM_OPTIONS}
{SEGMENT_OPTIONS}
--realtime              read a recording no faster than it was spoken
--json                  a JSON object for every piece of text, and one for the summary
--no-drafts             leave out what is not certain yet (it is shown on a terminal and in JSON, and costs decoding)
--log FILE              also write what is shown and taken back, and when, for `leapformer score`
--log-format {choice(LOG_FORMATS)} = {LOG_FORMATS[0]}  simulstream's metrics log, or OmniSTEval's JSONL, which knows no
                        drafts
{DEVICE}
"""


more_options = own_options


def run(args: argparse.Namespace, load_sessions: LoadSessions = load_sessions) -> int:
    """Translate until the end, Ctrl-C, SIGTERM or SIGHUP, then print how much audio and computation there was."""
    blocks = _blocks(args)
    output, recorder = _output(args), _recorder(args)
    began = time.perf_counter()
    session = load_sessions(args).create(output.shows_drafts and not args.no_drafts)
    ending = Ending()
    if recorder is not None:
        recorder.begin(time.perf_counter() - began)
    try:
        for block in ending.of(blocks):
            for event in _recorded(recorder, session.push(block), len(block)):
                output.show(event)
            output.state(f"{session.audio_s:.1f} s heard, real-time factor {_factor(session)}")
        for event in _recorded(recorder, session.finish()):
            output.show(event)
    except KeyboardInterrupt:  # the second one
        ending.status = 130
    except BrokenPipeError:  # nobody reads any more, as after `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        with suppress(OSError):  # a terminal that is gone
            output.close()
        if recorder is not None:
            recorder.close()
        ending.restore()
    output.summarise(_summary(session))
    return ending.status


class Ending:
    """Lets Ctrl-C, SIGTERM and a closed terminal end the audio: what is held back is written. The second ends all."""

    def __init__(self) -> None:
        self.status = 0
        self._waits = False  # whether more audio is waited for, and nothing else is done
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        in_main = threading.current_thread() is threading.main_thread()
        self._before = {number: signal.signal(number, self._told) for number in numbers if in_main}

    def of(self, blocks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        """The audio, until it ends."""
        while not self.status:
            self._waits = True
            try:
                block = next(blocks, None)
            except KeyboardInterrupt:
                self.status = self.status or 130
                return
            finally:
                self._waits = False
            if block is None:
                return
            yield block

    def restore(self) -> None:
        """Signals mean again what they meant before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _told(self, number: int, _: object) -> None:
        second, self.status = bool(self.status), 128 + number
        if self._waits or second:
            raise KeyboardInterrupt


def _recorder(args: argparse.Namespace) -> Recorder | None:
    if args.log is None:
        return None
    recording = "standard input" if args.audio == "-" else args.audio
    return Recorder(args.log, recording, args.unit or "word", args.log_format)


def _recorded(recorder: Recorder | None, events: Iterator[Event], n_samples: int = 0) -> Iterator[Event]:
    return events if recorder is None else recorder.listen(events, n_samples)


def _blocks(args: argparse.Namespace) -> Iterator[np.ndarray]:
    """The audio, piece by piece; what is wrong with its beginning is said before a model is loaded."""
    if args.audio != "-":
        blocks = read_blocks(args.audio, BLOCK)
    elif args.realtime:
        raise LeapformerError("--realtime paces a recording; standard input has its own pace, leave it out")
    elif sys.stdin is None or sys.stdin.isatty():
        raise LeapformerError(
            f"standard input is no audio; pipe it in, as in `arecord -f S16_LE -r {SAMPLE_RATE} -t raw | leapformer "
            "stream - ...`"
        )
    else:
        return read_pcm(cast(BufferedReader, sys.stdin.buffer), "standard input")
    blocks = chain(list(islice(blocks, 1)), blocks)
    return _paced(blocks) if args.realtime else blocks


def _paced(blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Each block when its last sample would have been spoken."""
    spoken = time.monotonic()
    for block in blocks:
        spoken += len(block) / SAMPLE_RATE
        time.sleep(max(0.0, spoken - time.monotonic()))
        yield block


def _summary(session: Session) -> dict[str, Any]:
    """Seconds of audio and of computation, by part."""
    times = asdict(session.times)
    return {
        "audio_s": session.audio_s,
        "segments": session.n_segments,
        "compute_s": session.times.total_s,
        "real_time_factor": session.times.total_s / session.audio_s if session.n_samples else None,
        **times,
    }


def _factor(session: Session) -> str:
    return f"{session.times.total_s / session.audio_s:.2f}" if session.n_samples else "unknown"


# -------------------------------------------------------------------------------------------------------------- output
def _output(args: argparse.Namespace) -> Lines:
    between = "" if args.unit == "char" else " "
    if args.json:
        return JsonLines(sys.stdout, between)
    live = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return (Screen if live else Lines)(sys.stdout, between)


class Lines:
    """Final text as it arrives, one line per segment; the summary goes to standard error."""

    shows_drafts = False

    def __init__(self, file: TextIO, between: str) -> None:
        """`between` stands between two pieces of text."""
        self.file, self.between = file, between
        self.line = ""  # final text of the segment

    def show(self, event: Event) -> None:
        new = event.text if not self.line or not event.text else self.between + event.text
        self.line += new
        self._write(new)
        if event.ends:
            self.close()

    def state(self, text: str) -> None:
        """Report progress; only a terminal shows it."""

    def close(self) -> None:
        """End the line; more may follow."""
        if self.line:
            self._write("\n")
        self.line = ""

    def summarise(self, summary: dict[str, Any]) -> None:
        factor = summary["real_time_factor"]
        print(
            f"{summary['audio_s']:.1f} s of audio, segments: {summary['segments']}; {summary['compute_s']:.2f} s of "
            f"computation (features {summary['features_s']:.2f}, encoder {summary['encoder_s']:.2f}, decoder "
            f"{summary['decoder_s']:.2f}), real-time factor {'unknown' if factor is None else f'{factor:.2f}'}",
            file=sys.stderr,
        )

    def _write(self, text: str) -> None:
        self.file.write(text)
        self.file.flush()


class JsonLines(Lines):
    """One JSON object per line for every event, and {"summary": ...} at the end."""

    shows_drafts = True

    def show(self, event: Event) -> None:
        self._write(json.dumps(asdict(event), ensure_ascii=False) + "\n")

    def summarise(self, summary: dict[str, Any]) -> None:
        self._write(json.dumps({"summary": summary}) + "\n")


class Screen(Lines):
    """A terminal: final text, then the draft in grey, and a status line."""

    shows_drafts = True

    def __init__(self, file: TextIO, between: str) -> None:
        super().__init__(file, between)
        self.draft = self.status = ""
        self._above = 0  # rows above the cursor that are redrawn

    def show(self, event: Event) -> None:
        if event.final:
            self.line, self.draft = self._joined(event.text), ""
        else:
            self.draft = event.text
        self._draw(for_good=event.ends)

    def state(self, text: str) -> None:
        self.status = text
        self._draw()

    def close(self) -> None:
        self.draft = self.status = ""
        self._draw(for_good=True)

    def _joined(self, text: str) -> str:
        return self.line + self.between + text if self.line and text else self.line + text

    def _draw(self, for_good: bool = False) -> None:
        """Rows of final text are written once; the row that may still change is redrawn."""
        width = max(2, shutil.get_terminal_size().columns) - 1
        text, n_final = self._joined(self.draft), len(self.line)
        rows = rows_of(text, width)
        n_done = len(rows) if for_good else max(0, sum(stop <= n_final for _, stop in rows) - 1)
        n_final_rows = sum(start < n_final for start, _ in rows)
        rows = rows[: n_final_rows + DRAFT_ROWS]
        up = f"\x1b[{self._above}A" if self._above else ""
        drawn = "".join(_coloured(text, start, stop, n_final) + "\n" for start, stop in rows)
        self._write(f"\r{up}{CLEAR}{drawn}{GREY}{self.status[:width]}{PLAIN}")
        self.line = self.line[rows[n_done][0] :] if n_done < len(rows) else ""
        self._above = len(rows) - n_done


def _coloured(text: str, start: int, stop: int, n_final: int) -> str:
    border = min(max(start, n_final), stop)
    return text[start:border] + (GREY + text[border:stop] + PLAIN if border < stop else "")


def rows_of(text: str, width: int) -> list[tuple[int, int]]:
    """The start and end of each row of a text, at most `width` cells wide, broken at spaces where possible."""
    rows, start = [], 0
    while start < len(text):
        stop, cells = start, _cells(text[start])
        while stop < len(text) and (stop == start or cells <= width):
            stop += 1
            cells += _cells(text[stop]) if stop < len(text) else 0
        space = text.rfind(" ", start + 1, stop + 1)
        if stop < len(text) and space > 0:
            stop = space
        rows.append((start, stop))
        start = stop + text.startswith(" ", stop)
    return rows


def _cells(character: str) -> int:
    """Columns of the terminal that a character takes."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1

"""What goes wrong with live talks: lost connections, restarts, others who know a part of the address, crowds."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

websockets = pytest.importorskip("websockets", reason="the extra live")
from websockets.asyncio.client import connect  # noqa: E402
from websockets.exceptions import ConnectionClosed, InvalidStatus  # noqa: E402

from leapformer_fairseq.runtime import serve  # noqa: E402
from leapformer_fairseq.runtime.audio import SAMPLE_RATE  # noqa: E402
from leapformer_fairseq.runtime.commands import demo  # noqa: E402
from leapformer_fairseq.runtime.folder import MODEL, WEIGHTS  # noqa: E402
from leapformer_fairseq.runtime.serve.files import RUNTIME, FileServer, Hosts, model_files  # noqa: E402
from leapformer_fairseq.runtime.serve.server import LiveServer  # noqa: E402
from leapformer_fairseq.runtime.serve.talk import MARK_S, Limits  # noqa: E402
from leapformer_fairseq.runtime.serve.texts import Texts  # noqa: E402
from leapformer_fairseq.runtime.simul.segments import SegmentOptions  # noqa: E402
from leapformer_fairseq.runtime.simul.session import Event, Session  # noqa: E402
from leapformer_fairseq.runtime.simul.stream import DecodingOptions  # noqa: E402
from leapformer_fairseq.support.errors import LeapformerError  # noqa: E402
from tests.simul.test_serve import (  # noqa: E402
    END,
    OPTIONS,
    SEGMENTS,
    Running,
    alone,
    final,
    heard,
    pcm,
    received,
    running,
    session,  # noqa: F401
    shown,
    speak,
    test,
)

PAGE = Path(serve.__file__).parent / "page"
NODE = shutil.which("node")


def live(make: Callable[[bool], Session], texts: Path | None = None, port: int = 0, **limits: Any) -> Running:
    about = {"model": "tiny", "between": " ", "lagging": 3}
    return Running(LiveServer(make, about, Limits(**limits), texts=None if texts is None else Texts(texts)), port)


async def first(client: Any) -> dict[str, Any]:
    return json.loads(await client.recv())


# ----------------------------------------------------------------------------------------------------- lost connections
class Network:
    """Between clients and a server: it can cut connections, swallow what is sent, hold it up, and be away."""

    def __init__(self, port: Callable[[], int]) -> None:
        self._target, self._pairs = port, list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]]()
        self.swallows = self.away = False
        self._losses, self._flows = 0, asyncio.Event()
        self._flows.set()

    async def __aenter__(self) -> Network:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        self._server.close()

    def cut(self) -> None:
        for writers in self._pairs:
            for writer in writers:
                writer.transport.abort()
        self._pairs.clear()

    def lose(self) -> None:
        """The connections that there are swallow everything from now on, and nobody closes them."""
        self._losses += 1

    async def trouble(self, rng: random.Random, seconds: float) -> str:
        """One disconnect, of a kind: a cut, or a network that is away, or swallows all, or delivers it later."""
        kind = rng.choice(["cut", "away", "swallow", "late"])
        self.away, self.swallows = kind == "away", kind == "swallow"
        if kind in ("cut", "away"):
            self.cut()
        elif kind == "late":
            self._flows.clear()
        await asyncio.sleep(seconds)
        self.away = self.swallows = False
        self._flows.set()
        if kind == "swallow" and rng.random() < 0.5:  # else the old connection lives on, half open
            self.cut()
        return kind

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.away:
            writer.transport.abort()
            return
        try:
            there = await asyncio.open_connection("127.0.0.1", self._target())
        except OSError:
            writer.transport.abort()
            return
        self._pairs.append((writer, there[1]))
        with suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(self._pump(reader, there[1]), self._pump(there[0], writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lost, losses = False, self._losses
        while data := await reader.read(65_536):
            lost = (
                lost or self.swallows or losses < self._losses
            )  # TCP loses nothing in the middle: what follows never comes either
            await self._flows.wait()
            if not lost:
                writer.write(data)
                await writer.drain()
        await self._flows.wait()
        if not lost:  # else it does not hear of the end either
            writer.transport.abort()


class Recorded(Session):
    """Remembers what it heard."""

    heard: list[np.ndarray]

    def push(self, samples: np.ndarray) -> Iterator[Event]:
        self.heard.append(samples)
        return super().push(samples)


@pytest.fixture
def recorded(make_system) -> tuple[Callable[[bool], Session], list[Recorded]]:
    """Sessions that remember, and all that were made."""
    system, made = make_system(), list[Recorded]()

    def make(drafts: bool) -> Session:
        made.append(Recorded(system, OPTIONS, SEGMENTS, drafts=drafts))
        made[-1].heard = []
        return made[-1]

    return make, made


STARTED = list[asyncio.subprocess.Process]()


@pytest.fixture(autouse=True)
def nobody_speaks_on() -> Iterator[None]:
    """Also not after a test that failed."""
    yield
    while STARTED:
        if (process := STARTED.pop()).returncode is None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


async def in_node(
    url: str, samples: np.ndarray, folder: Path, piece_ms: int = 3, reload_every: int = 0
) -> asyncio.subprocess.Process:
    """A speaker with the page's script or, at a listener's address, a listener."""
    (folder / "speech.pcm").write_bytes(pcm(samples))
    words = ["--experimental-websocket", "--no-warnings", str(Path(__file__).with_name("speaker.mjs")), PAGE.as_uri()]
    assert NODE is not None
    made = await asyncio.create_subprocess_exec(
        NODE, *words, url, str(folder / "speech.pcm"), str(piece_ms), str(reload_every), stdout=asyncio.subprocess.PIPE
    )
    STARTED.append(made)
    return made


def text_of(events: list[dict[str, Any]]) -> list[tuple[str, float]]:
    return [(event["text"], round(event["audio_s"], 3)) for event in events if event["text"]]


@pytest.mark.skipif(NODE is None, reason="no node")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 20))])
def test_every_sample_comes_once_and_in_order(seed, recorded, speech, tmp_path):
    """The page's own script, loaded again now and then, through a network that is cut, away, or silent."""
    make, made = recorded
    samples, rng = speech(24.0), random.Random(seed)

    async def body() -> None:
        async with live(make, idle_s=20) as server, Network(lambda: server.port) as network:
            client = await in_node(f"ws://127.0.0.1:{network.port}/", samples, tmp_path, 15, 67)
            troubles = 0
            done = asyncio.create_task(client.communicate())
            while not done.done():
                await asyncio.wait([done], timeout=rng.uniform(0.02, 0.2))
                if not done.done() and troubles < 12:
                    await network.trouble(rng, rng.uniform(0.001, 0.3) ** rng.choice([0.3, 1, 2]))
                    troubles += 1
            out, _ = await done
            assert client.returncode == 0 and troubles >= 8
            talk = made[-1]  # earlier ones were lost before a second of sound had come
            np.testing.assert_array_equal(np.concatenate(talk.heard), heard(samples))
            expected = [vars(event) for event in alone(make, samples) if event.final]
            assert text_of(json.loads(out)["events"]) == text_of(expected)

    test(body())


@pytest.mark.skipif(NODE is None, reason="no node")
@pytest.mark.parametrize("restarts", [3, pytest.param(50, marks=pytest.mark.full)])
def test_texts_outlive_the_server(restarts, recorded, speech, tmp_path):
    """Every restart forgets the session; what has no final text is sent and translated again."""
    make, _ = recorded
    samples, rng = speech(6.0 + 2.4 * restarts), random.Random(restarts)
    texts = tmp_path / "texts"

    async def body() -> None:
        at = 0
        async with Network(lambda: at) as network:
            client = await in_node(f"ws://127.0.0.1:{network.port}/", samples, tmp_path, 4, 49)
            done = asyncio.create_task(client.communicate())
            for _ in range(restarts):
                async with live(make, texts) as server:
                    at = server.port
                    await asyncio.wait([done], timeout=rng.uniform(0.1, 0.4))
            async with live(make, texts) as server:
                at = server.port
                out, _ = await done
                assert client.returncode == 0
                expected = [vars(event) for event in alone(make, samples) if event.final]
                said = json.loads(out)["events"]
                assert [text for text, _ in text_of(said)] == [text for text, _ in text_of(expected)]
                (path,) = texts.glob("*.jsonl")
                kept = Texts(texts).find(path.stem)
                assert kept is not None and kept.ended and [vars(one) for one in kept.events] == said
                async with server.connect(f"/listen/{path.stem}") as late:
                    shown_first = await first(late)
                    assert shown_first["history"] == said and (await first(late))["end_of_processing"]

    test(body())


@pytest.mark.full
@pytest.mark.skipif(NODE is None, reason="no node")
def test_a_page_whose_talk_is_taken_begins_another(recorded, speech, tmp_path):
    """A server that keeps no texts was started again, and somebody who knew the name was faster."""
    make, made = recorded
    samples, at = speech(8.0), 0

    async def body() -> None:
        nonlocal at
        async with Network(lambda: at) as network:
            async with live(make) as server:
                at = server.port
                client = await in_node(f"ws://127.0.0.1:{network.port}/", samples, tmp_path, 4)
                while not (made and sum(map(len, made[0].heard)) > 2 * SAMPLE_RATE):
                    await asyncio.sleep(0.01)
                (name,) = server.server.talks
                at = 0
            async with live(make) as server, server.connect() as thief:
                await thief.send(json.dumps({"talk": f"{name}.{'0' * 32}", "begin": True}))
                await thief.send(pcm(speech(2, 1)))
                at = server.port
                out, _ = await asyncio.wait_for(client.communicate(), 10)
                assert json.loads(out)["name"] != name
                came = np.concatenate(made[-1].heard)
                np.testing.assert_array_equal(came, heard(samples)[-len(came) :])
                assert len(came) > 5 * SAMPLE_RATE

    test(body())


def test_the_timer_of_a_lost_connection_ends_no_talk(session, speech):  # noqa: F811
    """Half open: the server takes the old connection for alive, and closes it while the new one speaks."""

    async def body() -> None:
        async with running(session, idle_s=0.6) as server, server.connect() as lost:
            await lost.send(pcm(speech(2)))
            key = (await first(lost))["talk"]
            async with server.connect() as client:
                await client.send(json.dumps({"talk": key}))
                assert (await first(client))["received"] == 2 * SAMPLE_RATE
                for _ in range(8):
                    await asyncio.sleep(0.2)
                    await client.send(pcm(speech(0.2)))
                (talk,) = server.server.talks.values()
                assert not talk.done.is_set()
                with pytest.raises(ConnectionClosed):
                    while True:
                        assert "end_of_processing" not in await first(lost)

    test(body())


def test_audio_of_a_replaced_connection_is_not_heard(session, speech):  # noqa: F811
    async def body() -> None:
        async with running(session) as server, server.connect() as old, server.connect() as new:
            await old.send(pcm(speech(2)))
            key = (await first(old))["talk"]
            await new.send(json.dumps({"talk": key}))
            await first(new)
            with suppress(ConnectionClosed):
                await old.send(pcm(speech(1)))
            await asyncio.sleep(0.2)
            (talk,) = server.server.talks.values()
            assert talk.received == 2 * SAMPLE_RATE

    test(body())


def test_a_connection_that_was_held_up_takes_nothing_over(session, speech):  # noqa: F811
    """A network may deliver last what was said first, long after the page has given that connection up."""
    key = f"{'a' * 32}.{'b' * 32}"

    async def body() -> None:
        async with running(session) as server, server.connect() as client:
            await client.send(json.dumps({"talk": key, "begin": True, "turn": 7}))
            await client.send(pcm(speech(2)))
            async with server.connect() as late:
                await late.send(json.dumps({"talk": key, "begin": True, "turn": 6}))
                assert "comes late" in (await first(late))["error"]
            await client.send(END)
            assert shown(await received(client)) == final(alone(session, speech(2)))

    test(body())


def test_audio_is_placed_by_its_number(session, speech):  # noqa: F811
    samples = speech(4)

    async def body() -> None:
        async with running(session) as server, server.connect() as client:
            await client.send(pcm(samples[: 2 * SAMPLE_RATE]))
            await client.send(json.dumps({"from": SAMPLE_RATE}))
            assert shown(await speak(client, samples[SAMPLE_RATE:])) == final(alone(session, samples))
        async with running(session) as server, server.connect() as client:
            await client.send(pcm(samples[: 2 * SAMPLE_RATE]))
            await client.send(json.dumps({"from": 3 * SAMPLE_RATE}))
            while "error" not in (message := await first(client)):
                pass
            assert "the audio goes on at sample 48000, 32000 came" in message["error"]

    test(body())


def test_an_ended_talk_is_reported_to_who_comes_back(session, speech):  # noqa: F811
    async def body() -> None:
        async with running(session) as server:
            async with server.connect() as client:
                await client.send(pcm(speech(2)))
                key = (await first(client))["talk"]
                await client.send(END)
                client.transport.abort()
            (talk,) = server.server.talks.values()
            await asyncio.wait_for(talk.done.wait(), 10)
            async with server.connect() as client:
                await client.send(json.dumps({"talk": key}))
                assert (await first(client))["history"] and (await first(client))["end_of_processing"]

    test(body())


# ------------------------------------------------------------------------------------------------------------ listeners
def test_who_listens_cannot_speak(session, speech):  # noqa: F811
    """Neither by the name of the talk, nor at the listeners' address."""

    async def body() -> None:
        async with running(session, token="secret") as server, server.connect("/?token=secret") as client:
            await client.send(pcm(speech(2)))
            name = (await first(client))["listen"]
            (talk,) = server.server.talks.values()
            async with server.connect(f"/listen/{name}") as listener:  # without the token
                assert "talk" not in await first(listener)
                await listener.send(pcm(speech(1)))
                await listener.send(END)
                await asyncio.sleep(0.3)
                assert talk.received == 2 * SAMPLE_RATE and not talk.done.is_set()
            for key in (name, f"{name}.", f"{name}.{'0' * 32}"):
                async with server.connect("/?token=secret") as thief:
                    await thief.send(json.dumps({"talk": key}))
                    assert "there is no such talk" in (await first(thief))["error"]
            with pytest.raises(InvalidStatus, match="401"):
                async with server.connect("/"):
                    pass

    test(body())


def test_a_listener_that_is_gone_gives_its_place_away(session, speech, monkeypatch):  # noqa: F811
    """Half open: nothing closes the connection, and a quiet talk sends nothing that could fail."""
    from leapformer_fairseq.runtime.serve import files

    monkeypatch.setattr(files, "PING_S", 0.1)
    monkeypatch.setattr(files, "CLOSE_S", 0.1)

    async def body() -> None:
        async with running(session, listeners=1) as server, server.connect() as client:
            await client.send(pcm(speech(2)))
            path = f"/listen/{(await first(client))['listen']}"
            async with Network(lambda: server.port) as network:
                lost = connect(f"ws://127.0.0.1:{network.port}{path}", proxy=None, ping_interval=None)
                async with lost as listener:
                    await first(listener)
                    network.swallows = True
                    await asyncio.sleep(0.6)
                    async with server.connect(path) as other:
                        assert (await first(other))["history"] is not None
                    network.cut()

    test(body())


@pytest.mark.skipif(NODE is None, reason="no node")
def test_a_listeners_page_notices_that_its_connection_is_dead(session, speech, tmp_path, monkeypatch):  # noqa: F811
    from leapformer_fairseq.runtime.serve import server as module

    monkeypatch.setattr(module, "ALIVE_S", 0.1)

    async def body() -> None:
        async with running(session) as server, server.connect() as client, Network(lambda: server.port) as network:
            await client.send(pcm(speech(2)))
            name = (await first(client))["listen"]
            listener = await in_node(f"ws://127.0.0.1:{network.port}/listen/{name}", np.zeros(0), tmp_path)
            while not server.server._listening:
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.4)  # longer than a page waits for an answer: a talk may be quiet
            assert len(network._pairs) == 1
            network.lose()
            await client.send(pcm(speech(2, 1)))
            await client.send(END)
            await received(client)
            said = json.loads((await asyncio.wait_for(listener.communicate(), 10))[0])
            assert said["events"] == [vars(event) for event in server.server.talks[name].history]

    test(body())


# ---------------------------------------------------------------------------------------------------------------- texts
def test_texts_are_for_their_owner_and_hold_no_key(session, speech, tmp_path):  # noqa: F811
    async def body() -> None:
        async with live(session, tmp_path / "texts") as server, server.connect() as client:
            await client.send(pcm(speech(3)))
            key = (await first(client))["talk"]
            await client.send(END)
            await received(client)
            (path,) = (tmp_path / "texts").iterdir()
            assert key.partition(".")[2] not in path.read_text()
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

    test(body())


def test_a_full_disk_stops_the_text_and_not_the_talk(session, speech, tmp_path, monkeypatch, caplog):  # noqa: F811
    def full(number: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    async def body() -> None:
        async with live(session, tmp_path / "texts") as server, server.connect() as client:
            monkeypatch.setattr(os, "write", full)
            assert shown(await speak(client, speech(3))) == final(alone(session, speech(3)))
            monkeypatch.undo()
        assert "the talk goes on, its text is not kept" in caplog.text and caplog.text.count("WARNING") == 1

    test(body())


def test_a_folder_that_cannot_keep_texts_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(LeapformerError, match=r"--talks .*: texts cannot be kept there .*choose another folder, or"):
        Texts(tmp_path / "file" / "texts")


def test_a_text_whose_server_was_killed_midway_is_read(tmp_path):
    texts = Texts(tmp_path)
    text = texts.begin("a" * 32, "secret", 16_000, {})
    events = [Event(word, True, word == "b", 1, 1.0) for word in "ab"] + [Event("c", True, False, 2, 2.0)]
    text.add(events, 16_000)
    text.close()
    with (tmp_path / f"{'a' * 32}.jsonl").open("a") as file:
        file.write('{"text": "d", "fin')
    kept = texts.find("a" * 32, "secret")
    assert kept is not None and (kept.events, kept.settled, kept.ended) == (events[:2], 16_000, False)
    assert texts.find("a" * 32, "other") is None and texts.find("b" * 32) is None and texts.find("../x") is None


@pytest.fixture
def window(make_system) -> Callable[[bool], Session]:
    """Sessions with one segment, of which old parts are forgotten."""
    system = make_system()
    segments = SegmentOptions("seconds", history="window", history_words=3, min_seconds=0.2, max_seconds=60)
    return lambda drafts: Session(system, DecodingOptions(max_len_b=200), segments, drafts=drafts)


def test_a_window_is_translated_again_from_its_last_words_on(window, speech, tmp_path):
    """A talk is one segment: what was forgotten of it has its text, whatever happens to the server."""
    samples = speech(20.0)
    samples[4 * SAMPLE_RATE : 7 * SAMPLE_RATE] = 0  # of which the session hears a second
    before = alone(window, samples)

    async def body() -> None:
        key, history = f"{'a' * 32}.{'b' * 32}", list[dict[str, Any]]()
        for second, upto in enumerate((16, 18, 20)):
            async with live(window, tmp_path) as server, server.connect() as client:
                await client.send(json.dumps({"talk": key, "begin": True}))
                told = await first(client)
                start, earlier = told["received"], history
                history = told["history"]
                words, was = (" ".join(one["text"] for one in part).split() for part in (history, earlier))
                assert words == was[: len(words)] and len(words) >= len(was) - 9, "all but the last words"
                if second == 1:  # where the kept words end, in the whole of the audio
                    assert start > 8 * SAMPLE_RATE
                    assert start <= SAMPLE_RATE * next(e.audio_s for e in before[len(history) :] if e.text)
                await client.send(json.dumps({"from": start}))
                await client.send(pcm(samples[start : upto * SAMPLE_RATE]))
                (talk,) = server.server.talks.values()
                while (told := await first(client))["heard_s"] < upto:
                    pass
                assert upto - told["settled"] / SAMPLE_RATE < 6 + MARK_S
                history = [vars(event) for event in talk.history]

    test(body())


def test_marks_in_a_text(tmp_path):
    """Letters of a segment whose audio is not needed again: what follows them is written again."""
    texts, name = Texts(tmp_path), "a" * 32
    text = texts.begin(name, "secret", 16_000, {})
    words = [Event(word, True, word == "b c", 1 + (word > "c"), 1.0) for word in ("a", "b c", "d e", "f", "g")]
    text.add(words[:2], 16_000)
    text.add(words[2:4], 16_000)
    text.mark(20_000, 2)
    text.add(words[4:], 20_000)
    kept = texts.find(name)
    cut = [*words[:2], replace(words[2], ends=True)]
    assert kept is not None and (kept.events, kept.settled, kept.ended) == (cut, 20_000, False)
    text.close()
    text = texts.again(name)
    text.add([replace(words[3], segment=3)], 20_000)
    text.mark(22_000, 0)
    kept = texts.find(name)
    assert kept is not None and (kept.events, kept.settled) == (cut, 22_000)
    text.mark(24_000, 1)
    kept = texts.find(name)
    assert kept is not None and (kept.events[3:], kept.settled) == ([replace(words[3], segment=3, ends=True)], 24_000)


def test_a_disk_with_room_again_gets_the_whole_text(session, speech, tmp_path, monkeypatch, caplog):  # noqa: F811
    """The last line before that was cut off."""
    write, writes = os.write, [3, None, None, None]  # bytes

    def full(number: int, data: bytes) -> int:
        if not writes:
            return write(number, data)
        if (room := writes.pop(0)) is None:
            raise OSError(28, "No space left on device")
        return write(number, data[:room])

    async def body() -> None:
        async with live(session, tmp_path) as server, server.connect() as client:
            monkeypatch.setattr(os, "write", full)
            await client.send(pcm(speech(8)))
            await client.send(END)
            told = await received(client)
            kept = Texts(tmp_path).find(told[0]["listen"])
            said = [event for message in told for event in message.get("events", []) if event["final"]]
            assert kept is not None and kept.ended and [vars(event) for event in kept.events] == said
            ends = [m["settled"] for m in told if any(event["ends"] for event in m.get("events", []))]
            assert ends[:2] == [0, 0] and ends[-1] == 8 * SAMPLE_RATE, "the client keeps its audio until then"
        assert not writes and caplog.text.count("WARNING") == 1

    test(body())


@pytest.mark.full
def test_a_slow_disk_stalls_nobody(session, speech, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(os, "fsync", lambda number: time.sleep(0.3))

    async def body() -> None:
        gaps = [0.0]

        async def watch() -> None:
            while True:
                before = time.monotonic()
                await asyncio.sleep(0.01)
                gaps.append(time.monotonic() - before)

        async with live(session, tmp_path) as server, server.connect() as client:
            watches = asyncio.create_task(watch())
            assert shown(await speak(client, speech(3))) == final(alone(session, speech(3)))
            watches.cancel()
        assert max(gaps) < 0.25

    test(body())


def test_a_folder_that_is_deleted_is_made_again(session, speech, tmp_path, caplog):  # noqa: F811
    """For later talks; a text that somebody has deleted while it grew is not written again, which is said."""

    async def body() -> None:
        async with live(session, tmp_path / "texts") as server, server.connect() as client:
            for deleted in (False, True):
                shutil.rmtree(tmp_path / "texts")
                await client.send(pcm(speech(3)))
                while not any(event["ends"] for event in (await first(client)).get("events", [])):
                    pass
                (path,) = (tmp_path / "texts").iterdir()
                if deleted:
                    path.unlink()
                await client.send(pcm(speech(3)))
                await client.send(END)
                await received(client)
                assert path.exists() != deleted
        assert caplog.text.count("WARNING") == 1 and "was deleted" in caplog.text

    test(body())


def test_a_line_that_was_cut_off_spoils_no_later_one(tmp_path):
    texts, name = Texts(tmp_path), "a" * 32
    events = [Event(word, True, True, number, 1.0) for number, word in enumerate("ab", 1)]
    texts.begin(name, "secret", 16_000, {}).close()
    for event in events:
        text = texts.again(name)
        text.add([event], 16_000)
        text.close()
        with (tmp_path / f"{name}.jsonl").open("a") as file:
            file.write('{"text": "d", "fin')
    kept = texts.find(name)
    assert kept is not None and kept.events == events


@pytest.mark.parametrize(
    "line", ['{"sample_rate": "x"}', '{"sample_rate": 0}', '{"text": 5}', "[]", '{"settled": "x"}']
)
def test_a_damaged_text_is_none(tmp_path, line, caplog):
    texts, name = Texts(tmp_path), "a" * 32
    texts.begin(name, "secret", 16_000, {}).close()
    path = tmp_path / f"{name}.jsonl"
    path.write_text(line + "\n" if "rate" in line else path.read_text() + line + "\n")
    kept = texts.find(name)
    assert kept is None or (line == "[]" and not kept.events)
    assert (kept is None) == ("is damaged" in caplog.text)


@pytest.mark.full
@pytest.mark.skipif(NODE is None, reason="no node")
def test_two_servers_do_not_write_the_same_text(recorded, speech, tmp_path):
    """A page comes to another server while the first takes the talk for its own: it tries until that has ended."""
    make, made = recorded
    samples, texts = speech(24.0), tmp_path / "texts"

    async def body() -> None:
        async with live(make, texts) as other:
            async with live(make, texts) as server, Network(lambda: at) as network:
                at = server.port
                client = await in_node(f"ws://127.0.0.1:{network.port}/", samples, tmp_path, 4)
                while not (made and sum(map(len, made[0].heard)) > 4 * SAMPLE_RATE):
                    await asyncio.sleep(0.01)
                at = other.port
                network.cut()
                await asyncio.sleep(0.2)
                assert len(made) == 1 and not client.stdout.at_eof()
                server.server.close()
                await asyncio.sleep(0.2)
                assert len(made) == 2, "it goes on at once, not when it has nothing more to say"
                out, _ = await asyncio.wait_for(client.communicate(), 10)
            expected = [vars(event) for event in alone(make, samples) if event.final]
            assert [text for text, _ in text_of(json.loads(out)["events"])] == [text for text, _ in text_of(expected)]

    test(body())


def test_who_listens_before_the_speaker_is_back_hears_him(session, speech, tmp_path):  # noqa: F811
    """Also after the server has forgotten that somebody asked for the talk."""
    key = f"{'a' * 32}.{'b' * 32}"

    async def body() -> None:
        async with live(session, tmp_path) as server, server.connect() as client:
            await client.send(json.dumps({"talk": key, "begin": True}))
            await client.send(pcm(speech(3)))
            while not any(event["ends"] for event in (await first(client)).get("events", [])):
                pass
        async with live(session, tmp_path, idle_s=0.2) as server, server.connect(f"/listen/{'a' * 32}") as listener:
            assert (await first(listener))["history"]
            await asyncio.sleep(0.4)
            async with server.connect() as client:
                await client.send(json.dumps({"talk": key, "begin": True}))
                await client.send(json.dumps({"from": (await first(client))["received"]}))
                await client.send(pcm(speech(3)))
                await client.send(END)
                await received(client)
            assert any(message.get("events") for message in await received(listener))

    test(body())


# --------------------------------------------------------------------------------------------------------------- places
def test_silence_takes_no_place_from_who_speaks(session, speech):  # noqa: F811
    async def body() -> None:
        async with running(session, talks=1) as server, server.connect() as quiet, server.connect() as client:
            await quiet.send(pcm(np.zeros(SAMPLE_RATE)))
            await first(quiet)
            for _ in range(30):  # of silence, none of which is kept
                await quiet.send(pcm(np.zeros(SAMPLE_RATE)))
            assert shown(await speak(client, speech(3))) == final(alone(session, speech(3)))
            async with server.connect() as other:
                await other.send(pcm(speech(3)))
                await first(other)
                await quiet.send(pcm(speech(3)))
                while "error" not in (message := await first(quiet)):
                    pass
                assert "all 1 talks of this server are in use" in message["error"]

    test(body())


def test_who_is_silent_gives_way(session, speech):  # noqa: F811
    async def body() -> None:
        async with running(session, talks=1, silent_s=0.3) as server, server.connect() as idle:
            await idle.send(pcm(speech(2)))
            await first(idle)
            await asyncio.sleep(0.5)
            async with server.connect() as client:
                assert shown(await speak(client, speech(3))) == final(alone(session, speech(3)))
            assert shown(await received(idle)) == final(alone(session, speech(2)))  # it was told all

    test(body())


def test_listeners_take_no_place_from_speakers(session, speech):  # noqa: F811
    async def body() -> None:
        async with running(session, connections=1, listeners=2) as server, server.connect() as client:
            await client.send(pcm(speech(2)))
            name = (await first(client))["listen"]
            async with server.connect(f"/listen/{name}"), server.connect(f"/listen/{name}"):
                with pytest.raises(InvalidStatus, match="503"):
                    async with server.connect(f"/listen/{name}"):
                        pass
            with pytest.raises(InvalidStatus, match="503"):
                async with server.connect():
                    pass

    test(body())


def test_one_address_gets_only_so_many_connections(session, monkeypatch):  # noqa: F811
    from leapformer_fairseq.runtime.serve import server as module

    monkeypatch.setattr(module, "_address", lambda connection: "192.0.2.1")

    async def body() -> None:
        async with running(session, per_address=1) as server:
            async with server.connect():
                with pytest.raises(InvalidStatus, match="503"):
                    async with server.connect():
                        pass
            await asyncio.sleep(0.1)
            async with server.connect():
                pass

    test(body())


def test_connections_that_ask_for_nothing_give_way(session, monkeypatch):  # noqa: F811
    from leapformer_fairseq.runtime.serve import files

    monkeypatch.setattr(files, "SILENT", 3)

    async def body() -> None:
        async with running(session) as server, server.connect():
            opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(8)]
            await asyncio.sleep(0.1)
            assert [reader.at_eof() or reader.exception() is not None for reader, _ in opened] == [True] * 5 + [
                False
            ] * 3
            async with server.connect():
                pass
            for _, writer in opened:
                writer.close()

    test(body())


def test_who_does_not_speak_gives_his_connection_to_who_wants_to(session, speech):  # noqa: F811
    async def body() -> None:
        async with running(session, connections=2) as server, server.connect() as client, server.connect() as idle:
            await client.send(pcm(speech(2)))
            await first(client)
            async with server.connect() as other:
                assert shown(await speak(other, speech(3))) == final(alone(session, speech(3)))
                assert "others want to speak" in (await first(idle))["error"]
            await client.send(END)
            assert shown(await received(client)) == final(alone(session, speech(2)))

    test(body())


def test_talks_of_which_nothing_was_heard_are_not_kept(session, speech, tmp_path):  # noqa: F811
    """However often somebody begins one, and of those that have ended only so many."""

    async def body() -> None:
        async with live(session, tmp_path) as server, server.connect() as client:
            for number in range(60):
                await client.send(json.dumps({"talk": f"{number:032}.{'b' * 32}", "begin": True}))
                await first(client)
                if number % 2:
                    await client.send(END)
                    await received(client)
            assert len(server.server.talks) < 3
            await asyncio.sleep(0.1)
            assert len(server.server._runs) < 3 and len(asyncio.all_tasks()) < 20

    test(body())


def test_a_session_is_made_once(session, speech):  # noqa: F811
    """Also where the first audio and another k come together."""
    made = list[Session]()

    def slowly(drafts: bool) -> Session:
        time.sleep(0.1)
        made.append(session(drafts))
        return made[-1]

    async def body() -> None:
        async with running(slowly) as server, server.connect() as client:
            await client.send(pcm(speech(2)))
            await first(client)
            await client.send(json.dumps({"lagging": 2}))
            await client.send(END)
            await received(client)
        assert len(made) == 1

    test(body())


def at_random(rng: random.Random, data: bytes) -> str | bytes:
    """A message that may be right in some things."""
    if rng.random() < 0.35:
        at = rng.randrange(len(data))
        return data[at : at + rng.choice([0, 1, 2, 640, 3_200, 65_536])]
    wrong = [None, True, False, 0, -1, 10**6, 2**53, 1.5, float("nan"), "", [], {}, 48_000]
    right: dict[str, list[Any]] = {
        "talk": [f"{name:032x}.{secret * 32}" for name in range(5) for secret in "bc"],
        "sample_rate": [SAMPLE_RATE], "drafts": [True, False], "begin": [True, False], "end_of_stream": [True],
        "from": [0, 7, 50_000], "turn": [1, 2, 3], "lagging": [1, 5],
    }  # fmt: skip
    keys = rng.sample(list(right), rng.randrange(1, 5))
    return json.dumps({key: rng.choice(right[key] if rng.random() < 0.8 else wrong) for key in keys})


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_said_harms_nobody(session, speech, tmp_path, caplog, seed):  # noqa: F811
    """Ten who say anything, in talks that are each other's, and listeners: nothing fails, and nothing is left."""
    rng, data, stop = random.Random(seed), pcm(speech(5.0)), time.monotonic() + 5
    limits = {"talks": 2, "connections": 6, "listeners": 4, "idle_s": 0.5, "silent_s": 0.2, "backlog_s": 1}

    async def body() -> None:
        async with live(session, tmp_path, **limits) as server:

            async def one(path: str, most: int) -> None:
                while time.monotonic() < stop:
                    with suppress(ConnectionClosed, InvalidStatus, OSError):
                        async with server.connect(path) as client:
                            for _ in range(rng.randrange(1, most)):
                                await client.send(at_random(rng, data))
                                await asyncio.sleep(rng.choice([0, 0.001, 0.02]))
                            if rng.random() < 0.4:
                                client.transport.abort()
                    await asyncio.sleep(0.01)

            listeners = [one(f"/listen/{name:032x}", 5) for name in range(5)]
            await asyncio.gather(*listeners, *(one("/", 40) for _ in range(10)))
            await asyncio.sleep(1.5)
            made = server.server
            assert not any((made.talks, made._speakers, made._listening, made._connections, made._waits, made._runs))
            async with server.connect() as client:
                assert shown(await speak(client, speech(3))) == final(alone(session, speech(3)))

    test(body())
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


def test_silence_is_answered_too(session):  # noqa: F811
    """Else a page takes a server without a free place for dead."""

    async def body() -> None:
        async with running(session, talks=1) as server, server.connect() as client, server.connect() as quiet:
            await client.send(pcm(np.full(SAMPLE_RATE, 0.1)))
            await first(client)
            await quiet.send(pcm(np.zeros(SAMPLE_RATE)))
            await first(quiet)
            await quiet.send(pcm(np.zeros(SAMPLE_RATE)))
            assert (await asyncio.wait_for(first(quiet), 5))["received"] >= SAMPLE_RATE

    test(body())


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        ('{"from": %s}' % ("9" * 400), "from is 9"),
        ('{"lagging": %s}' % ("9" * 400), "lagging is 9"),
        ('{"turn": -1}', "turn is -1"),
        ('{"talk": "%s.\\ud800"}' % ("a" * 32), "no such talk"),
        (json.dumps({"talk": f"{'a' * 32}.{'b' * 32}", "sample_rate": 48_000}), "16000 samples a second"),
    ],
)
def test_what_would_do_harm_is_refused(session, speech, message, answer, caplog):  # noqa: F811
    async def body() -> None:
        async with running(session) as server, server.connect() as client, server.connect() as other:
            await client.send(json.dumps({"talk": f"{'a' * 32}.{'b' * 32}", "begin": True}))
            await client.send(pcm(speech(2)))
            await other.send(message)
            assert answer in (await first(other))["error"]
            await client.send(END)
            assert shown(await received(client)) == final(alone(session, speech(2)))

    test(body())
    assert "Traceback" not in caplog.text


def test_pings_without_end_stall_nobody(session, speech, monkeypatch):  # noqa: F811
    """Who sends them and does not read the answers is disconnected."""
    from leapformer_fairseq.runtime.serve import server as module

    monkeypatch.setattr(module, "WATCH_S", 0.1)

    async def body() -> None:
        async with running(session) as server:
            small = socket.socket()
            small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that the server's own buffer fills soon
            small.connect(("127.0.0.1", server.port))
            reader, writer = await asyncio.open_connection(sock=small)
            writer.write(
                f"GET / HTTP/1.1\r\nHost: localhost:{server.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
            )
            await reader.readuntil(b"\r\n\r\n")

            async def flood() -> None:
                with suppress(OSError):
                    while True:
                        writer.write((b"\x89\xfd\x00\x00\x00\x00" + b"x" * 125) * 500)
                        await writer.drain()
                        await asyncio.sleep(0)

            task = asyncio.create_task(flood())
            async with server.connect() as client:
                assert shown(await speak(client, speech(3))) == final(alone(session, speech(3)))
            await asyncio.wait_for(task, 20)

    test(body())


# ---------------------------------------------------------------------------------------------------- names and tokens
def test_a_host_is_a_name():
    for name in ("https://talks.example", "talks.example:8443", "", "a b"):
        with pytest.raises(LeapformerError, match="give a name alone"):
            Hosts([name])


def test_a_name_that_is_not_known_is_refused(session):  # noqa: F811
    """A page of another site may make its own name mean this address."""

    async def body() -> None:
        async with running(session) as server:
            server.server.hosts.add("talks.example")
            server.server.hosts.add("Bücher.example")  # browsers send it as ASCII
            for host, good in (
                ("localhost", True), ("127.0.0.1", True), ("[::1]", True), ("192.168.1.7", True),
                ("talks.example", True), ("TALKS.example", True), ("evil.example", False), ("", False),
                ("localhost.evil.example", False), ("a b", False), ("xn--bcher-kva.example", True),
            ):  # fmt: skip
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(f"GET / HTTP/1.1\r\nHost: {host}:{server.port}\r\n\r\n".encode())
                answer = (await reader.read()).decode()
                assert answer.startswith(f"HTTP/1.1 {200 if good else 403}"), host
                policy = next(line for line in answer.splitlines() if line.startswith("Content-Security-Policy"))
                assert "ws:;" not in policy and "ws: " not in policy and "*" not in policy
                assert (f" ws://{host}:{server.port}" in policy) == good
                writer.close()

    test(body())


@pytest.mark.parametrize(
    "request_",
    ["GET / HTTP/1.1\r\nHost: [", "GET //[ HTTP/1.1\r\nHost: localhost", "GET / HTTP/1.1\r\nHost: a\r\nHost: b"],
)
def test_a_malformed_request_is_told_so(session, request_):  # noqa: F811
    async def body() -> None:
        async with running(session) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(f"{request_}\r\n\r\n".encode())
            assert (await reader.read()).startswith(b"HTTP/1.1 400")
            writer.close()

    test(body())


def test_a_served_model_is_for_who_knows_the_token(tmp_path):
    """With --in-browser: the page's own files are asked for without it, by its cookie."""
    files = {"/": ("text/html", b"page"), "/model/a": ("application/octet-stream", b"weights")}

    async def body() -> None:
        server = FileServer(files, "s c/ret")
        listening = await server.start("127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]

        async def get(path: str, cookie: str = "") -> tuple[int, str]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n".encode())
            answer = (await reader.read()).decode()
            writer.close()
            return int(answer.split()[1]), answer

        assert (await get("/"))[0] == (await get("/model/a"))[0] == (await get("/?token=wrong"))[0] == 401
        status, answer = await get("/?token=s%20c%2Fret")
        cookie = answer.partition("Set-Cookie: ")[2].partition(";")[0]
        assert status == 200 and "HttpOnly; SameSite=Strict" in answer and "ret" not in cookie
        assert (await get("/model/a", cookie))[0] == 200
        assert (await get("/model/a", cookie[:-1]))[0] == 401
        listening.close()
        await listening.wait_closed()

    test(body())


def test_links_that_leave_a_served_folder_are_refused(tmp_path):
    (tmp_path / "runtime").mkdir()
    for name in RUNTIME:
        (tmp_path / "runtime" / name).touch()
    model = shutil.copytree(demo.MODEL, tmp_path / "model")
    assert model_files(model, tmp_path / "runtime")
    for name in (WEIGHTS, MODEL):
        (model / name).rename(tmp_path / name)
        (model / name).symlink_to(tmp_path / name)
        with pytest.raises(LeapformerError, match=f"{name}.*link"):
            model_files(model, tmp_path / "runtime")
        (model / name).unlink()
        (tmp_path / name).rename(model / name)


def test_the_command_prints_an_address_that_can_be_opened_and_ends_soon(tmp_path):
    """Also while somebody speaks; his text is there after that."""
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "leapformer_fairseq.cli.main", "serve", "--checkpoint", str(demo.MODEL)]

    async def body() -> None:
        process = await asyncio.create_subprocess_exec(
            *command, "--port", "0", "--token", "a b&c", env=environment, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        address = (await process.stdout.readline()).decode().split()[1]
        assert address.endswith("/?token=a%20b%26c")
        assert str(tmp_path / "leapformer/talks") in (await process.stdout.readline()).decode()
        samples, _ = soundfile.read(demo.FOLDER / json.loads(demo.EXAMPLE.read_text())["audio"], dtype="float32")
        async with connect(address.replace("http", "ws"), proxy=None) as client:
            for _ in range(2):
                await client.send(pcm(np.concatenate([samples, np.zeros(SAMPLE_RATE, np.float32)])))
            while not any(event["ends"] for event in (await first(client)).get("events", [])):
                pass
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            _, err = await process.communicate()
            assert process.returncode == 0 and not err and time.monotonic() - began < 4
        (path,) = (tmp_path / "leapformer/talks").glob("*.jsonl")
        kept = Texts(path.parent).find(path.stem)
        assert kept is not None and kept.events and not kept.ended and kept.settled > 0

    test(body())

"""The live server: what speakers and listeners get is what a session gives alone, whatever else happens."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

websockets = pytest.importorskip("websockets", reason="the extra live")
from websockets.asyncio.client import ClientConnection, connect  # noqa: E402
from websockets.exceptions import ConnectionClosed, InvalidStatus  # noqa: E402

from leapformer_fairseq.runtime.audio import SAMPLE_RATE  # noqa: E402
from leapformer_fairseq.runtime.serve.messages import Samples, parse  # noqa: E402
from leapformer_fairseq.runtime.serve.server import LiveServer  # noqa: E402
from leapformer_fairseq.runtime.serve.talk import UNSENT, Limits, Listener, Talk  # noqa: E402
from leapformer_fairseq.runtime.simul.segments import SegmentOptions  # noqa: E402
from leapformer_fairseq.runtime.simul.session import Event, Session  # noqa: E402
from leapformer_fairseq.runtime.simul.shown import Shown  # noqa: E402
from leapformer_fairseq.runtime.simul.stream import DecodingOptions  # noqa: E402
from leapformer_fairseq.support.errors import LeapformerError  # noqa: E402

OPTIONS = DecodingOptions(max_len_b=20)
SEGMENTS = SegmentOptions("seconds", max_seconds=1.5, min_seconds=1)
END = json.dumps({"end_of_stream": True})


@pytest.fixture
def session(make_system) -> Callable[[bool], Session]:
    system = make_system()
    return lambda drafts: Session(system, OPTIONS, SEGMENTS, drafts=drafts)


class Running:
    """A server on a free port of this machine."""

    def __init__(self, server: LiveServer, port: int = 0) -> None:
        self.server, self.port = server, port

    async def __aenter__(self) -> Running:
        self.listening = await self.server.start("127.0.0.1", self.port)
        self.port = next(iter(self.listening.sockets)).getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.listening.close()
        self.server.close()
        await self.listening.wait_closed()

    def connect(self, path: str = "/", **options: Any) -> connect:
        return connect(f"ws://127.0.0.1:{self.port}{path}", proxy=None, **options)

    def get(self, path: str) -> Awaitable[tuple[int, dict[str, str], bytes]]:
        def fetch() -> tuple[int, dict[str, str], bytes]:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                f"http://127.0.0.1:{self.port}{path}", timeout=10
            ) as answer:
                return answer.status, dict(answer.headers), answer.read()

        return asyncio.get_running_loop().run_in_executor(None, fetch)


def running(session: Callable[[bool], Session], token: str | None = None, **limits: Any) -> Running:
    return Running(LiveServer(session, {"model": "tiny", "between": " ", "lagging": 3}, Limits(**limits), token))


def test(body: Awaitable[None]) -> None:
    """Run a test's coroutine; nothing may wait for ever."""
    asyncio.run(asyncio.wait_for(body, 60))


test.__test__ = False  # type: ignore[attr-defined]


def pcm(samples: np.ndarray) -> bytes:
    return np.round(samples * 2.0**15).clip(-(2**15), 2**15 - 1).astype("<i2").tobytes()


def heard(samples: np.ndarray) -> np.ndarray:
    """As the server gets them."""
    return np.frombuffer(pcm(samples), "<i2").astype(np.float32) / np.float32(2.0**15)


def pieces(data: bytes, seed: int) -> Iterator[bytes]:
    """Cut at random between samples, nothing at all now and then."""
    random, place = np.random.default_rng(seed), 0
    while place < len(data):
        size = 2 * int(random.integers(0, 6_000))
        yield data[place : place + size]
        place += size


def alone(make: Callable[[bool], Session], samples: np.ndarray, drafts: bool = False) -> list[Event]:
    session = make(drafts)
    return [*session.push(heard(samples)), *session.finish()]


def final(events: Iterable[Event]) -> str:
    return " ".join(event.text for event in events if event.final and event.text)


async def received(client: ClientConnection) -> list[dict[str, Any]]:
    """All messages to the end of the talk."""
    found = []
    while "end_of_processing" not in (message := json.loads(await client.recv())):
        found.append(message)
    return found


def shown(messages: Iterable[dict[str, Any]]) -> str:
    """What a client of simulstream shows, which knows two keys."""
    text = ""
    for message in messages:
        deleted = message.get("deleted", "")
        assert text.endswith(deleted)
        text = text[: len(text) - len(deleted)] + message.get("new", "")
    return text


async def speak(client: ClientConnection, samples: np.ndarray, seed: int = 0) -> list[dict[str, Any]]:
    for piece in pieces(pcm(samples), seed):
        await client.send(piece)
    await client.send(END)
    return await received(client)


# ---------------------------------------------------------------------------------------------------------------- talks
@pytest.mark.parametrize("drafts", [False, True])
def test_a_speaker_gets_what_a_session_gives(session, speech, drafts):
    samples = speech(4.3)
    expected = alone(session, samples, drafts)
    assert len(final(expected)) > 20

    async def body() -> None:
        async with running(session) as server, server.connect() as client:
            for _ in range(2):  # the connection may be used again
                await client.send(json.dumps({"drafts": drafts, "source_lang": "en", "metrics_metadata": {}}))
                messages = await speak(client, samples)
                events = [Event(**event) for message in messages for event in message.get("events", [])]
                assert [e for e in events if e.final] == [e for e in expected if e.final]
                assert any(not event.final for event in events) == drafts
                assert shown(messages) == final(expected)
                assert messages[-1]["heard_s"] == len(samples) / SAMPLE_RATE and messages[-1]["behind_s"] == 0

    test(body())


def test_eight_speakers_at_once(session, speech):
    talks = [speech(2 + 0.3 * i, seed=i) for i in range(8)]

    async def body() -> None:
        async with running(session, talks=8) as server:

            async def one(i: int) -> str:
                async with server.connect() as client:
                    return shown(await speak(client, talks[i], seed=i))

            found = await asyncio.gather(*map(one, range(8)))
        assert found == [final(alone(session, samples)) for samples in talks]

    test(body())


def test_listeners_get_the_talk_from_its_beginning(session, speech):
    samples = speech(4)
    half = pcm(samples)[: SAMPLE_RATE * 4]

    async def body() -> None:
        async with running(session) as server, server.connect() as client:
            await client.send(half)
            talk = json.loads(await client.recv())["listen"]
            while json.loads(await client.recv())["heard_s"] < 2:
                pass
            async with server.connect(f"/listen/{talk}") as late:
                first = json.loads(await late.recv())
                assert first["listen"] == talk and first["history"] and "talk" not in first
                await client.send(pcm(samples)[len(half) :])
                await client.send(END)
                events = first["history"] + [e for m in await received(late) for e in m["events"]]
            assert final(Event(**event) for event in events) == final(alone(session, samples))

    test(body())


def test_a_lost_connection_loses_no_text(session, speech):
    samples = speech(4)
    half = pcm(samples)[: SAMPLE_RATE * 4]

    async def body() -> None:
        async with running(session) as server:
            async with server.connect() as client:
                await client.send(half)
                talk = json.loads(await client.recv())["talk"]
                while json.loads(await client.recv())["heard_s"] < 2:
                    pass
                client.transport.abort()
            async with server.connect() as client:
                await client.send(json.dumps({"talk": talk}))
                first = json.loads(await client.recv())
                assert first["heard_s"] == 2 and first["history"]
                await client.send(pcm(samples)[len(half) :])
                await client.send(END)
                events = first["history"] + [e for m in await received(client) for e in m["events"]]
            assert final(Event(**event) for event in events) == final(alone(session, samples))

    test(body())


def test_a_talk_without_a_speaker_ends(session, speech):
    async def body() -> None:
        async with running(session, idle_s=0.2) as server:
            async with server.connect() as client:
                await client.send(pcm(speech(1)))
                talk = json.loads(await client.recv())["talk"]
            made = server.server.talks[talk.partition(".")[0]]
            await asyncio.wait_for(made.done.wait(), 10)
            async with server.connect() as client:
                await client.send(json.dumps({"talk": talk}))
                assert "no such talk" in json.loads(await client.recv())["error"]
                with pytest.raises(ConnectionClosed):
                    await client.recv()

    test(body())


def test_another_k_holds_from_the_next_segment_on(session, speech):
    samples = speech(6)
    first, whole = session(False), len(samples) // 2 // 640 * 640
    expected = [*first.push(heard(samples[:whole]))]
    first.use_lagging(1)
    expected += [*first.push(heard(samples[whole:])), *first.finish()]
    assert expected != alone(session, samples)

    async def body() -> None:
        async with running(session) as server, server.connect() as client:
            await client.send(pcm(samples[:whole]))
            await client.recv()
            while json.loads(await client.recv())["heard_s"] < whole / SAMPLE_RATE:
                pass
            await client.send(json.dumps({"lagging": 1}))
            assert final(expected).endswith(shown(await speak(client, samples[whole:])).strip())

    test(body())


# --------------------------------------------------------------------------------------------------------------- limits
class Slow(Session):
    """Takes two seconds for a second of audio."""

    def push(self, samples: np.ndarray) -> Iterator[Event]:
        import time

        time.sleep(2 * len(samples) / SAMPLE_RATE)
        return super().push(samples)


def test_an_overloaded_server_says_how_far_it_is_behind(make_system, speech):
    system, samples = make_system(), speech(1.2)

    async def body() -> None:
        slow = running(lambda drafts: Slow(system, OPTIONS, SEGMENTS), backlog_s=0.4)
        async with slow as server, server.connect() as client:
            await client.send(pcm(samples))
            await client.send(END)
            messages = await received(client)
        waiting = [message["behind_s"] for message in messages]
        assert max(waiting) > 0.4 and waiting[-1] == 0
        assert messages[-1]["rtf"] > 1.5
        assert shown(messages) == final(alone(lambda _: Session(system, OPTIONS, SEGMENTS), samples))

    test(body())


def test_audio_waits_for_room(make_system, speech):
    """The server reads no further while too much waits, and so its memory is bounded."""
    system, room = make_system(), threading.Event()

    class Waiting(Session):
        def push(self, samples: np.ndarray) -> Iterator[Event]:
            room.wait(10)
            return super().push(samples)

    async def body() -> None:
        waiting = running(lambda drafts: Waiting(system, OPTIONS, SEGMENTS), backlog_s=0.5)
        async with waiting as server, server.connect() as client:
            for _ in range(20):
                await client.send(pcm(speech(0.25)))
            await asyncio.sleep(0.5)
            (talk,) = server.server.talks.values()
            assert 0 < talk.behind_s < 1
            room.set()

    test(body())


def test_only_so_many_talks_and_connections(session, speech):
    async def body() -> None:
        async with running(session, talks=1, connections=1) as server, server.connect() as first:
            await first.send(pcm(speech(1)))
            await first.recv()
            with pytest.raises(InvalidStatus, match="503"):
                async with server.connect():
                    pass
            await first.send(END)
            assert shown(await received(first)) == final(alone(session, speech(1)))

    test(body())


def test_who_finds_no_place_is_told(session, speech):
    async def body() -> None:
        async with running(session, talks=1) as server, server.connect() as first, server.connect() as second:
            await first.send(pcm(speech(1)))
            await first.recv()
            await second.send(pcm(speech(1)))
            assert "all 1 talks" in json.loads(await second.recv())["error"]

    test(body())


def test_a_connection_without_audio_is_closed(session):
    async def body() -> None:
        async with running(session, idle_s=0.1) as server, server.connect() as client:
            assert "no audio" in json.loads(await client.recv())["error"]

    test(body())


def test_a_listener_that_does_not_read_is_left_behind():
    listener = Listener()
    for _ in range(UNSENT):
        listener.put({})
    assert not listener.lost
    listener.put({})
    assert listener.lost


def test_a_client_that_does_not_read_is_disconnected(session):
    class Deaf:
        aborted = False
        transport = property(lambda self: self)

        async def send(self, text: str) -> None:
            await asyncio.sleep(100)

        def abort(self) -> None:
            self.aborted = True

    async def body() -> None:
        server, client, listener = LiveServer(session, {}, Limits(send_s=0.05)), Deaf(), Listener()
        listener.put({"new": "word"})
        await server.send(client, listener)  # type: ignore[arg-type]
        assert client.aborted
        server.close()

    test(body())


def test_a_failed_talk_leaves_others_alone(make_system, speech, caplog):
    system, samples, made = make_system(), speech(2), []

    class Failing(Session):
        def push(self, samples: np.ndarray) -> Iterator[Event]:
            raise ZeroDivisionError("a bug")

    def make(drafts: bool) -> Session:
        made.append((Failing if not made else Session)(system, OPTIONS, SEGMENTS))
        return made[-1]

    async def body() -> None:
        async with running(make) as server, server.connect() as first, server.connect() as second:
            messages = await speak(first, samples)
            assert "see the log" in messages[-1]["error"] and "a bug" not in str(messages)
            assert shown(await speak(second, samples)) == final(alone(lambda _: made[1].__class__(
                system, OPTIONS, SEGMENTS), samples))  # fmt: skip

    test(body())
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (b"odd", "3 bytes"),
        ("{", "is not JSON"),
        ("[1]", "not a JSON object"),
        ('{"lagging": true}', "type int"),
        ('{"lagging": 0}', "at least 1"),
        ('{"sample_rate": 5}', "8,000"),
        ('{"drafts": 1}', "type bool"),
        ('{"talk": "x"}', "no such talk"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_what_is_wrong_with_a_message_is_said(session, speech, message, named):
    async def body() -> None:
        async with running(session) as server, server.connect() as client, server.connect() as other:
            await client.send(message)
            assert named in json.loads(await client.recv())["error"]
            if isinstance(message, str) and "talk" not in message:  # the connection goes on
                assert shown(await speak(client, speech(1))) == final(alone(session, speech(1)))
            assert shown(await speak(other, speech(1))) == final(alone(session, speech(1)))

    test(body())


def test_a_message_that_is_too_long(session, speech):
    async def body() -> None:
        async with running(session, message_bytes=1_000) as server, server.connect() as client:
            await client.send(pcm(speech(1)))
            with pytest.raises(ConnectionClosed) as closed:
                await client.recv()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009

    test(body())


# ----------------------------------------------------------------------------------------------------------------- HTTP
def test_the_page_and_nothing_else_is_served(session):
    async def body() -> None:
        async with running(session) as server:
            for path, kind in {
                "/": "text/html", "/page.js": "javascript", "/talk.js": "javascript", "/recorder.js": "javascript",
                "/style.css": "text/css", "/config.json": "application/json",
            }.items():  # fmt: skip
                status, headers, content = await server.get(path)
                assert status == 200 and kind in headers["Content-Type"] and content
                assert "default-src 'self'" in headers["Content-Security-Policy"]
                assert b"http://" not in content.replace(b"http://www.w3.org", b"") and b"https://" not in content
            for path in ("/../server.py", "/nothing", "/listen/x"):
                with pytest.raises(urllib.error.HTTPError, match="404"):
                    await server.get(path)

    test(body())


def test_who_does_not_know_the_token_stays_outside(session, speech):
    async def body() -> None:
        async with running(session, token="secret") as server:
            for path in ("/", "/?token=wrong", "/?token="):
                with pytest.raises(InvalidStatus, match="401"):
                    async with server.connect(path):
                        pass
            async with server.connect("/?token=secret") as client:
                assert shown(await speak(client, speech(1))) == final(alone(session, speech(1)))

    test(body())


def test_pages_of_other_sites_may_not_connect(session):
    async def body() -> None:
        async with running(session) as server:
            with pytest.raises(InvalidStatus, match="403"):
                async with server.connect(origin="http://elsewhere.example"):
                    pass
            async with server.connect(origin=f"http://127.0.0.1:{server.port}"):
                pass

    test(body())


def test_an_address_that_is_taken(session):
    async def body() -> None:
        async with running(session) as server:
            with pytest.raises(LeapformerError, match="give another --port"):
                await LiveServer(session, {}, Limits()).start("127.0.0.1", server.port)

    test(body())


# ------------------------------------------------------------------------------------------------------------- messages
EVENTS = st.builds(Event, st.sampled_from(["", "a", "b c"]), st.booleans(), st.booleans(), st.just(1), st.just(1.0))


@given(st.lists(st.lists(EVENTS, max_size=4), max_size=8), st.sampled_from(["word", "char"]), st.booleans())
def test_what_is_deleted_was_shown(batches, unit, ends):
    text, shown, count = "", Shown(unit), 0
    for i, events in enumerate(batches):
        change = shown.changed(events, ends=ends and i == len(batches) - 1)
        new, deleted = change.strings
        assert text.endswith(deleted) and change.at_start == (len(change.deleted) == count)
        text = text[: len(text) - len(deleted)] + new
        count += len(change.new) - len(change.deleted)
        assert not (change.new and change.deleted) or change.new[0] != change.deleted[0], "what stays is not sent"
    done, draft = [], ""
    for event in (event for batch in batches for event in batch):
        done, draft = (done + [event.text] * bool(event.text), "") if event.final else (done, event.text)
    draft = "" if ends and batches else draft
    assert text == ("" if unit == "char" else " ").join([*done, *[draft] * bool(draft)])


@pytest.mark.parametrize("rate", [8_000, 44_100, 48_000])
def test_other_rates_are_resampled_without_seams(rate, speech):
    soxr = pytest.importorskip("soxr")
    data, samples = pcm(speech(1.0)), Samples(rate)
    found = np.concatenate([*(samples.of(piece) for piece in pieces(data, 1)), samples.rest()])
    whole = soxr.resample(np.frombuffer(data, "<i2").astype(np.float32) / np.float32(2**15), rate, SAMPLE_RATE)
    np.testing.assert_allclose(found, whole, atol=1e-6)


def test_keys_of_other_programs_are_ignored():
    assert parse('{"metrics_metadata": {"wav_name": "x.wav"}, "target_lang": 7, "sample_rate": 48000}') == {
        "sample_rate": 48_000
    }


@pytest.mark.parametrize("name", ["talks", "idle_s"])
def test_limits_are_above_zero(name):
    with pytest.raises(LeapformerError, match=f"--max-{name.replace('_', '-')} is 0"):
        Limits(**{name: 0})


def test_samples_are_taken_in_order_and_not_too_many(session):
    talk = Talk(lambda: session(False), "word", None, 100)  # type: ignore[arg-type]
    samples = np.arange(30_000, dtype=np.float32) / 2**15
    talk.hear(pcm(samples[:20_000]))
    talk.hear(pcm(samples[20_000:]))
    taken = [talk._take()[0] for _ in range(5)]
    assert [len(piece) for piece in taken] == [8_000, 8_000, 8_000, 6_000, 0]
    np.testing.assert_array_equal(np.concatenate(taken), samples)


@pytest.mark.full
def test_the_example_that_loads_a_server(session, speech, tmp_path):
    """Every speaker's final words arrive, with a delay and a real-time factor."""
    soundfile.write(tmp_path / "talk.wav", speech(1.5), SAMPLE_RATE, "PCM_16")
    example = Path(__file__).parents[2] / "examples/speakers.py"

    async def body() -> None:
        async with running(session) as server:
            words = [str(example), f"ws://127.0.0.1:{server.port}/", str(tmp_path / "talk.wav"), "1", "3"]
            done = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
            out, _ = await done.communicate()
            rows = [json.loads(line) for line in out.decode().splitlines()]
            assert done.returncode == 0 and [row["speakers"] for row in rows] == [1, 3]
            assert rows[1]["words"] == 3 * rows[0]["words"] > 0 and rows[0]["seconds"] == 1.5
            assert all(row["rtf"] > 0 and 0 < row["median_ms"] <= row["p95_ms"] < 10_000 for row in rows)

    test(body())

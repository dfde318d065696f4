"""The server: one port for the page, for speakers (WebSocket at /) and for listeners (/listen/TALK)."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from secrets import token_hex
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.server import Server, ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from ...support.errors import LeapformerError, one_line
from ..audio import SAMPLE_RATE
from ..simul.session import Session
from .files import Hosts, answer, listen, page_files, response, token_of, unauthorized
from .messages import parse
from .talk import Limits, Listener, Talk
from .texts import NAME, Kept, Texts

LISTEN = "/listen/"
KEY = re.compile(rf"{NAME.pattern}\.[0-9a-f]{{16,64}}")
POLICY_VIOLATION, UNSUPPORTED_DATA, TRY_LATER = 1008, 1003, 1013  # RFC 6455, section 7.4.1, and its registry
UNREAD_BYTES, WATCH_S = 1 << 20, 1.0  # most bytes that may wait for a client, and how often that is checked
ENDED_TALKS = 100  # most talks without a speaker that are remembered
ALIVE_S = 5.0  # seconds after which a listener gets an empty message, because pages cannot see pings


class Refused(Exception):
    """Raised to close a connection with a code and a reason in one line."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def _no_such_talk() -> Refused:
    return Refused(POLICY_VIOLATION, "there is no such talk, or it ended some time ago")


class LiveServer:
    """Speakers, listeners, and the page.

    `make_session` makes the session of a talk, with drafts or without; `about` is what the page is told of the model.
    """

    def __init__(
        self,
        make_session: Callable[[bool], Session],
        about: Mapping[str, Any],
        limits: Limits,
        token: str | None = None,
        unit: str = "word",
        prepare: Callable[[], None] | None = None,
        texts: Texts | None = None,
        hosts: Collection[str] = (),
    ) -> None:
        """`token`: what speakers must send as `?token=`. `unit`: of the text. `prepare`: called once in each thread.

        `texts`: where texts are kept. `hosts`: names by which browsers may call this server, beside addresses.
        """
        self.make_session, self.limits, self.token, self.unit = make_session, limits, token, unit
        self.texts, self.hosts = texts, Hosts(hosts)
        self.talks: dict[str, Talk] = {}
        self._about = {"model": about.get("model")}
        self._pool = ThreadPoolExecutor(limits.talks, "talk", prepare)
        self._tasks: set[asyncio.Task[None]] = set()
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._waits: dict[str, asyncio.TimerHandle] = {}  # timers that forget a talk
        self._connections: set[ServerConnection] = set()
        self._speakers = dict[Speaker, None]()  # the one heard last comes last
        self._listening = 0
        self._addresses: Counter[str] = Counter()
        self._files = page_files(about)

    async def start(self, host: str, port: int) -> Server:
        """Listen; the caller closes the returned server. Raises LeapformerError for an unavailable address."""
        self.hosts.add(host)
        limits = {"max_size": self.limits.message_bytes}
        server = await listen(host, port, handler=self._connected, process_request=self._request, **limits)
        self._keep(asyncio.create_task(self._watch()))
        return server

    def close(self) -> None:
        """Stop; texts stay, and waiting audio is not translated."""
        for task in self._tasks:
            task.cancel()
        for waits in self._waits.values():
            waits.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def busy(self) -> bool:
        """Whether a thread is still translating."""
        return any(thread.is_alive() for thread in self._pool._threads)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ----------------------------------------------------------------------------------------------------------- HTTP
    def _request(self, connection: ServerConnection, request: Request) -> Response | None:
        """A file of the page, a refusal, or None for a WebSocket."""
        if refusal := self.hosts.refusal(request):
            return refusal
        if request.headers.get("Upgrade", "").lower() != "websocket":
            return answer(self._files, request)
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != request.headers.get("Host"):
            return response(403, "Forbidden", "text/plain", b"a page of another server may not connect\n")
        listens = urlsplit(request.path).path.startswith(LISTEN)  # anyone who knows the talk may listen
        known = self.token is None or hmac.compare_digest(token_of(request).encode(), self.token.encode())
        if not (known or listens):
            return unauthorized()
        address = _address(connection)
        crowd = address and self._addresses[address] >= self.limits.per_address
        if crowd or not (self._listening < self.limits.listeners if listens else self._room()):
            return response(503, "Service Unavailable", "text/plain", b"too many connections; try again later\n")
        return None

    # ---------------------------------------------------------------------------------------------------- connections
    def _room(self) -> bool:
        """Whether there is room for a speaker, if need be after refusing the one that has been silent for longest."""
        if len(self._speakers) < self.limits.connections:
            return True
        silent = next((speaker for speaker in self._speakers if not speaker.speaks), None)
        if silent is not None:
            del self._speakers[silent]
            silent.refuse(TRY_LATER, "others want to speak; try again later")
        return silent is not None

    def hear(self, speaker: Speaker) -> None:
        """Note that a speaker was heard."""
        if speaker in self._speakers:
            del self._speakers[speaker]
            self._speakers[speaker] = None

    async def _connected(self, connection: ServerConnection) -> None:
        path = urlsplit(connection.request.path).path if connection.request else "/"
        listens, address = path.startswith(LISTEN), _address(connection)
        self._connections.add(connection)
        speaker = None if listens else Speaker(self, connection)
        if speaker is None:
            self._listening += 1
        else:
            self._speakers[speaker] = None
        self._addresses[address] += 1
        try:
            if speaker is None:
                await self._listen(connection, self._talk(path.removeprefix(LISTEN)))
            else:
                await speaker.serve()
        except Refused as refused:
            await self.refuse(connection, refused.code, str(refused))
        except LeapformerError as error:
            await self.refuse(connection, UNSUPPORTED_DATA, one_line(error))
        except ConnectionClosed:
            pass
        finally:
            self._connections.discard(connection)
            if speaker is None:
                self._listening -= 1
            else:
                self._speakers.pop(speaker, None)
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]

    async def _listen(self, connection: ServerConnection, talk: Talk) -> None:
        """Serve a listener to the end of the talk; what it sends is ignored."""
        listener = talk.join()
        gone = asyncio.create_task(connection.wait_closed())
        gone.add_done_callback(lambda _: talk.leave(listener))
        try:
            await self.send(connection, listener, ALIVE_S)
        finally:
            talk.leave(listener)
            gone.cancel()

    async def send(self, connection: ServerConnection, listener: Listener, alive_s: float | None = None) -> None:
        """Send all messages of a listener. A client that does not read is disconnected.

        `alive_s`: after so long without one, an empty message is sent.
        """
        with suppress(ConnectionClosed):
            while not listener.lost and (message := await listener.next(alive_s)) is not None:
                try:
                    await asyncio.wait_for(connection.send(json.dumps(message)), self.limits.send_s)
                except TimeoutError:
                    listener.lost = True
            if listener.lost:
                connection.transport.abort()  # a close frame would not be read either

    async def refuse(self, connection: ServerConnection, code: int, reason: str) -> None:
        """Close with the reason also as a message, because browsers and simulstream's clients show no close reason."""
        try:
            async with asyncio.timeout(self.limits.send_s):
                await connection.send(json.dumps({"error": reason}))
                await connection.close(code, reason.encode()[:120].decode(errors="ignore"))
        except ConnectionClosed:
            pass
        except TimeoutError:
            connection.transport.abort()

    async def _watch(self) -> None:
        """Disconnect a client that makes the server answer, for instance by pings, and does not read the answers."""
        while True:
            await asyncio.sleep(WATCH_S)
            for connection in list(self._connections):
                if connection.transport.get_write_buffer_size() > UNREAD_BYTES:
                    connection.transport.abort()

    # ---------------------------------------------------------------------------------------------------------- talks
    def open(self, drafts: bool, rate: int | None, name: str = "", secret: str = "") -> Talk:
        """Begin a talk, which waits for a place. Raises LeapformerError for a rate that cannot be resampled."""
        rate = rate or SAMPLE_RATE
        talk = self._made(drafts, rate, name or token_hex(16), secret or token_hex(16))
        if self.texts is not None:
            talk.keep = partial(self.texts.begin, talk.name, talk.secret, rate, self._about)
        return self._run(talk)

    def _run(self, talk: Talk) -> Talk:
        self.talks[talk.name] = talk

        async def run() -> None:
            await talk.run()
            self._fill()

        self._runs[talk.name] = asyncio.create_task(run())
        self._keep(self._runs[talk.name])
        return talk

    def place(self, talk: Talk) -> None:
        """Give a talk a place, if need be that of a silent one. Raises Refused if there is none."""
        if talk.placed.is_set():
            return
        placed = [other for other in self.talks.values() if other.placed.is_set() and not other.done.is_set()]
        if len(placed) >= self.limits.talks:
            if not talk.speaks:
                return
            unheard = [other for other in placed if not other.speaks]
            silent = [other for other in placed if other.silent_s >= self.limits.silent_s]
            if unheard:
                unheard[0].placed.clear()
            elif silent:
                max(silent, key=lambda other: other.silent_s).end()
            else:
                self._runs[talk.name].cancel()
                self._drop(talk)
                raise Refused(TRY_LATER, f"all {self.limits.talks} talks of this server are in use; try again later")
        talk.placed.set()

    def _fill(self) -> None:
        """Give free places to waiting talks; those that were heard come first."""
        for talk in sorted(self.talks.values(), key=lambda talk: not talk.speaks):
            if not talk.done.is_set() and talk.name in self._runs:
                with suppress(Refused):
                    self.place(talk)

    def resume(
        self, key: str, drafts: bool, rate: int | None, begins: bool = False, turn: int | None = None
    ) -> tuple[Talk, bool]:
        """Continue a talk whose speaker is back, also after a restart; returns the talk, and whether it is new.

        `rate`: of the audio, if that was told. `turn`: of the speaker's connection. Raises Refused if there is none of
        this speaker, another server has it, or a later connection speaks; LeapformerError if it has another rate.
        """
        if not KEY.fullmatch(key):
            raise _no_such_talk()
        name, _, secret = key.partition(".")
        if begins and name not in self.talks and not self._kept(name):
            talk = self.open(drafts, rate, name, secret)
            talk.turn = turn or 0
            return talk, True
        talk = self._talk(name, drafts)
        known = not talk.secret and self.texts is not None and self.texts.find(name, secret) is not None
        if not (known or talk.is_mine(key)):
            raise _no_such_talk()
        if rate not in (None, talk.rate):
            raise LeapformerError(f"the talk has {talk.rate} samples a second; send as many")
        if turn is not None:
            if turn < talk.turn:
                raise Refused(POLICY_VIOLATION, "this connection comes late, a newer one of the same speaker is known")
            talk.turn = turn
        if known and self.texts is not None:
            if not talk.done.is_set():
                try:
                    talk.text = self.texts.again(name)
                except LeapformerError as error:
                    raise Refused(TRY_LATER, one_line(error)) from error
                self._run(talk)
            talk.secret = secret
        if waiting := self._waits.pop(name, None):
            waiting.cancel()
        return talk, False

    def release(self, talk: Talk) -> None:
        """Note that a talk has no speaker; if anything was heard, it is kept for a while."""
        if not talk.is_empty:
            self._keep_for_now(talk)
            return
        if run := self._runs.get(talk.name):  # a speaker that comes back begins a new talk
            run.cancel()
        self._drop(talk)

    def _keep_for_now(self, talk: Talk) -> None:
        """End the talk and forget it after some time."""

        def forget() -> None:
            if talk.is_heard and talk.name not in self._runs:  # its speaker has not come back since a restart
                self._keep_for_now(talk)
                return
            talk.end()
            self._drop(talk)

        if waiting := self._waits.pop(talk.name, None):
            waiting.cancel()
        self._waits[talk.name] = asyncio.get_running_loop().call_later(self.limits.idle_s, forget)
        ended = [name for name in self._waits if self.talks[name].done.is_set()]
        for name in ended[:-ENDED_TALKS]:
            self._drop(self.talks[name])

    def _drop(self, talk: Talk) -> None:
        self.talks.pop(talk.name, None)
        self._runs.pop(talk.name, None)
        if waiting := self._waits.pop(talk.name, None):
            waiting.cancel()

    def _talk(self, name: str, drafts: bool = False) -> Talk:
        """The talk of this name, from its file if need be. Raises Refused if there is none."""
        if name in self.talks:
            return self.talks[name]
        kept = self._kept(name)
        if kept is None:
            raise _no_such_talk()
        talk = self._made(drafts, kept.rate, name, "", kept)  # its speaker must give the secret
        self.talks[name] = talk
        self._keep_for_now(talk)
        return talk

    def _kept(self, name: str) -> Kept | None:
        return self.texts.find(name) if self.texts is not None else None

    def _made(self, drafts: bool, *more: Any) -> Talk:
        return Talk(lambda: self.make_session(drafts), self.unit, self._pool, self.limits.backlog_s, *more)


class Speaker:
    """One speaker's connection, for one talk after the other."""

    def __init__(self, server: LiveServer, connection: ServerConnection) -> None:
        self.server, self.connection = server, connection
        self._talk: Talk | None = None
        self._listener: Listener | None = None
        self._sender: asyncio.Task[None] | None = None
        self._begin()

    def _begin(self) -> None:
        """Reset to the options of a new talk."""
        self._drafts, self._skip = False, 0
        self._rate: int | None = None  # sample rate of the audio, if the client gave it

    async def serve(self) -> None:
        """Serve the client until it disconnects."""
        try:
            while True:
                try:
                    message = await asyncio.wait_for(self.connection.recv(), self.server.limits.idle_s)
                except TimeoutError as error:
                    raise Refused(
                        POLICY_VIOLATION, f"no audio for {self.server.limits.idle_s:g} s; connect again to go on"
                    ) from error
                self.server.hear(self)
                try:
                    await (self._audio(message) if isinstance(message, bytes) else self._told(message))
                except LeapformerError as error:
                    await self._answer({"error": one_line(error)})
                    if isinstance(message, bytes):  # samples after an error would be noise
                        raise Refused(UNSUPPORTED_DATA, one_line(error)) from error
        finally:
            self._part()

    async def _audio(self, pcm: bytes) -> None:
        skipped = min(self._skip, len(pcm))
        self._skip -= skipped
        talk = self._current()
        talk.hear(pcm[skipped:])
        self.server.place(talk)
        if not talk.placed.is_set():
            talk.tell_state()  # otherwise there would be no answer
        await talk.room()

    async def _told(self, text: str) -> None:
        request = parse(text)
        if "drafts" in request:
            self._drafts = request["drafts"]
        if "sample_rate" in request:
            if "talk" not in request and self._talk is not None and self._talk.rate != request["sample_rate"]:
                raise LeapformerError(f"the talk has {self._talk.rate} samples a second; end it to change that")
            self._rate = request["sample_rate"]
        if "talk" in request:
            self._part()
            begins, turn = request.get("begin", False), request.get("turn")
            talk, new = self.server.resume(request["talk"], self._drafts, self._rate, begins, turn)
            self._attend(talk, new)
        if "from" in request:
            self._skip = self._current().continue_from(request["from"])
        if "lagging" in request:
            self._current().session.use_lagging(request["lagging"])
        if request.get("end_of_stream"):
            await self._end()

    async def _end(self) -> None:
        """Translate to the end of the talk; the next one may begin."""
        talk, sender = self._current(), self._sender
        talk.finish()
        if sender is not None:
            await sender
        self._part()
        self._begin()

    def _current(self) -> Talk:
        if self._talk is not None and self._talk.speaker is not self:
            raise Refused(POLICY_VIOLATION, "another connection speaks now")
        return self._talk or self._attend(self.server.open(self._drafts, self._rate))

    def _attend(self, talk: Talk, new: bool = True) -> Talk:
        """Take over a talk from an earlier connection, which may be broken without having been closed."""
        before, talk.speaker = talk.speaker, self
        if isinstance(before, Speaker):
            before.refuse(POLICY_VIOLATION, "another connection speaks now")
        self._talk, self._listener = talk, talk.join(speaker=True, new=new)
        self._sender = asyncio.create_task(self.server.send(self.connection, self._listener))
        return talk

    @property
    def speaks(self) -> bool:
        """Whether a second of sound was heard in its talk."""
        return self._talk is not None and self._talk.speaks

    def refuse(self, code: int, reason: str) -> None:
        """End the connection; the talk may go on with another one."""
        self.server._keep(asyncio.create_task(self.server.refuse(self.connection, code, reason)))

    def _part(self) -> None:
        """Leave the talk without ending it."""
        talk = self._talk
        if talk is not None and self._listener is not None:
            talk.leave(self._listener)
            if talk.speaker is self:
                talk.speaker = None
                if self.server.talks.get(talk.name) is talk:
                    self.server.release(talk)
        self._talk = self._listener = self._sender = None

    async def _answer(self, message: dict[str, Any]) -> None:
        await asyncio.wait_for(self.connection.send(json.dumps(message)), self.server.limits.send_s)


def _address(connection: ServerConnection) -> str:
    """The address of a client; empty for this machine, where a proxy may run."""
    address = str((connection.remote_address or ("",))[0])
    with suppress(ValueError):
        return "" if ipaddress.ip_address(address.partition("%")[0]).is_loopback else address
    return address

"""The server: one port for the page, for speakers (WebSocket at /) and for listeners (/listen/TALK)."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import Server, ServerConnection
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from ..agents.session import Session
from ..errors import LeapformerError, one_line
from .files import answer, listen, page_files, response
from .messages import Samples, parse
from .talk import Limits, Listener, Talk

LISTEN = "/listen/"
POLICY_VIOLATION, UNSUPPORTED_DATA, TRY_LATER = 1008, 1003, 1013  # RFC 6455, section 7.4.1, and its registry

logger = logging.getLogger(__name__)


class Refused(Exception):
    """A connection that is closed with a code and a reason in one line."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


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
    ) -> None:
        """`token`: what clients must know, as `?token=`. `unit`: of the text. `prepare`: called once in each thread."""
        self.make_session, self.limits, self.token, self.unit = make_session, limits, token, unit
        self.talks: dict[str, Talk] = {}
        self._pool = ThreadPoolExecutor(limits.talks, "talk", prepare)
        self._tasks: set[asyncio.Task[None]] = set()
        self._waits: dict[str, asyncio.TimerHandle] = {}  # until a talk is forgotten
        self._connections = 0
        self._files = page_files(about)

    async def start(self, host: str, port: int) -> Server:
        """Listen; the caller closes what is returned. Raises LeapformerError for an address that cannot be had."""
        limits = {"max_size": self.limits.message_bytes}
        return await listen(host, port, handler=self._connected, process_request=self._request, **limits)

    def close(self) -> None:
        """End all talks; audio that waits is not translated."""
        for task in self._tasks:
            task.cancel()
        self._pool.shutdown(cancel_futures=True)

    # ----------------------------------------------------------------------------------------------------------- HTTP
    def _request(self, connection: ServerConnection, request: Request) -> Response | None:
        """A file of the page, a refusal, or None for a WebSocket."""
        if request.headers.get("Upgrade", "").lower() != "websocket":
            return answer(self._files, request)
        if self._is_from_elsewhere(request.headers):
            return response(403, "Forbidden", "text/plain", b"a page of another server may not connect\n")
        if self.token is not None:
            given = parse_qs(urlsplit(request.path).query).get("token", [""])[0]
            if not hmac.compare_digest(given.encode(), self.token.encode()):
                return response(401, "Unauthorized", "text/plain", b"add ?token=TOKEN, as the server has printed it\n")
        if self._connections >= self.limits.connections:
            return response(503, "Service Unavailable", "text/plain", b"too many connections; try again later\n")
        return None

    @staticmethod
    def _is_from_elsewhere(headers: Headers) -> bool:
        """Whether a browser says that another site's page opens the connection."""
        origin = headers.get("Origin")
        return origin is not None and urlsplit(origin).netloc != headers.get("Host")

    # ---------------------------------------------------------------------------------------------------- connections
    async def _connected(self, connection: ServerConnection) -> None:
        path = urlsplit(connection.request.path).path if connection.request else "/"
        self._connections += 1
        try:
            if path.startswith(LISTEN):
                await self._listen(connection, self._talk(path.removeprefix(LISTEN)))
            else:
                await Speaker(self, connection).serve()
        except Refused as refused:
            await _close(connection, refused.code, str(refused))
        except ConnectionClosed:
            pass
        finally:
            self._connections -= 1

    async def _listen(self, connection: ServerConnection, talk: Talk) -> None:
        """To the end of the talk; what a listener sends is not read."""
        listener = talk.join()
        gone = asyncio.create_task(connection.wait_closed())
        gone.add_done_callback(lambda _: talk.leave(listener))
        try:
            await self.send(connection, listener)
        finally:
            talk.leave(listener)
            gone.cancel()

    async def send(self, connection: ServerConnection, listener: Listener) -> None:
        """All messages of a listener. A client that does not read is disconnected."""
        while not listener.lost and (message := await listener.next()) is not None:
            try:
                await asyncio.wait_for(connection.send(json.dumps(message)), self.limits.send_s)
            except TimeoutError:
                listener.lost = True
        if listener.lost:
            connection.transport.abort()  # a close frame would not be read either

    # ---------------------------------------------------------------------------------------------------------- talks
    def open(self, drafts: bool) -> Talk:
        """A new talk. Raises Refused when all are taken."""
        if sum(not talk.done.is_set() for talk in self.talks.values()) >= self.limits.talks:
            raise Refused(TRY_LATER, f"all {self.limits.talks} talks of this server are in use; try again later")
        talk = Talk(self.make_session(drafts), self.unit, self._pool, self.limits.backlog_s)
        self.talks[talk.name] = talk
        task = asyncio.create_task(talk.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return talk

    def resume(self, name: str) -> Talk:
        """A talk whose speaker comes back. Raises Refused if there is none."""
        talk = self._talk(name)
        if waiting := self._waits.pop(name, None):
            waiting.cancel()
        return talk

    def release(self, talk: Talk) -> None:
        """A talk without a speaker is kept for a while, then it ends and is forgotten."""

        def forget() -> None:
            talk.end()
            self.talks.pop(talk.name, None)
            self._waits.pop(talk.name, None)

        self._waits[talk.name] = asyncio.get_running_loop().call_later(self.limits.idle_s, forget)

    def _talk(self, name: str) -> Talk:
        if name not in self.talks:
            raise Refused(POLICY_VIOLATION, "there is no such talk, or it ended some time ago")
        return self.talks[name]


class Speaker:
    """One speaker's connection: talk after talk."""

    def __init__(self, server: LiveServer, connection: ServerConnection) -> None:
        self.server, self.connection = server, connection
        self._talk: Talk | None = None
        self._listener: Listener | None = None
        self._sender: asyncio.Task[None] | None = None
        self._begin()

    def _begin(self) -> None:
        """What a new talk starts with."""
        self._drafts, self._samples = False, Samples()

    async def serve(self) -> None:
        """Until the client goes."""
        try:
            while True:
                try:
                    message = await asyncio.wait_for(self.connection.recv(), self.server.limits.idle_s)
                except TimeoutError as error:
                    raise Refused(
                        POLICY_VIOLATION, f"no audio for {self.server.limits.idle_s:g} s; connect again to go on"
                    ) from error
                try:
                    await (self._audio(message) if isinstance(message, bytes) else self._told(message))
                except LeapformerError as error:
                    await self._answer({"error": one_line(error)})
                    if isinstance(message, bytes):  # the samples after it would be noise
                        raise Refused(UNSUPPORTED_DATA, one_line(error)) from error
        finally:
            self._part()

    async def _audio(self, pcm: bytes) -> None:
        samples = self._samples.of(pcm)
        await self._current().hear(samples)

    async def _told(self, text: str) -> None:
        request = parse(text)
        if "drafts" in request:
            self._drafts = request["drafts"]
        if "sample_rate" in request:
            self._samples = Samples(request["sample_rate"])
        if "talk" in request:
            self._part()
            self._attend(self.server.resume(request["talk"]))
        if "lagging" in request:
            self._current().session.use_lagging(request["lagging"])
        if request.get("end_of_stream"):
            await self._end()

    async def _end(self) -> None:
        """Translate all, then the connection is as new."""
        talk, sender = self._current(), self._sender
        await talk.hear(self._samples.rest())
        talk.end()
        if sender is not None:
            await sender
        self._part()
        self._begin()

    def _current(self) -> Talk:
        return self._talk or self._attend(self.server.open(self._drafts))

    def _attend(self, talk: Talk) -> Talk:
        self._talk, self._listener = talk, talk.join()
        self._sender = asyncio.create_task(self.server.send(self.connection, self._listener))
        return talk

    def _part(self) -> None:
        """Leave the talk as it is."""
        if self._talk is not None and self._listener is not None:
            self._talk.leave(self._listener)
            self.server.release(self._talk)
        self._talk = self._listener = self._sender = None

    async def _answer(self, message: dict[str, Any]) -> None:
        await asyncio.wait_for(self.connection.send(json.dumps(message)), self.server.limits.send_s)


async def _close(connection: ServerConnection, code: int, reason: str) -> None:
    """With the reason as a message, too: browsers and simulstream's clients do not show the other one."""
    try:
        await connection.send(json.dumps({"error": reason}))
        await connection.close(code, reason[:120])
    except ConnectionClosed:
        pass

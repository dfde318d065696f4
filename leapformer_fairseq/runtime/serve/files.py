"""The files of the page over HTTP: with a server that translates, or with a model that the browser runs itself."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import mimetypes
import re
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from http.cookies import SimpleCookie
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from ...support.errors import LeapformerError
from ..acoustics.fbank import BUNDLED, BUNDLED_SIZE
from ..folder import GRAPHS, MODEL, SPEECH, WEIGHTS, Folder
from ..sentences import BUNDLED as SENTENCES
from ..sentences import SentenceModel
from ..simul.segments import SegmentOptions
from ..simul.stream import DecodingOptions, System
from .texts import digest

# Pages load nothing from other sites, and only code of their own; onnxruntime-web compiles WebAssembly.
POLICY = "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'{sockets}; frame-ancestors 'none'"
COOKIE = "leapformer_token"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
RUNTIME = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")  # of onnxruntime-web

HOST = re.compile(r"[\w.:\[\]-]+")  # of a header, which is repeated in another
NAME = re.compile(r"[\w.-]+")  # of a host
SILENT = 256  # connections that have not asked for anything yet, at most
CLOSE_S = 1.0  # for a client to agree to the end of a connection
PING_S = 20.0  # how often a client is asked whether it is there, and how long it may take to answer

POLICIES = ("wait-k", "hold-n", "local-agreement", "offline")  # of page/local/policy.js

Files = dict[str, tuple[str, bytes]]  # kind and content by path


def page_files(about: Mapping[str, Any]) -> Files:
    """The page, and what it is told of the model."""
    page = resources.files(__package__) / "page"
    files = {f"/{name}": (_kind(name), file.read_bytes()) for name, file in _below(page)}
    files["/"] = files.pop("/index.html")
    files["/config.json"] = ("application/json", json.dumps(dict(about)).encode())
    return files


def model_files(path: Path, runtime: Path) -> Files:
    """An exported model for speech, the graph of filterbanks and, from its folder, onnxruntime-web.

    Raises LeapformerError where a file of the runtime is missing, or one of the model damaged.
    """
    folder = Folder.read(path)
    found = {f"/model/{name}": folder.file(name) for name in (WEIGHTS, *GRAPHS[SPEECH])}
    found |= {f"/model/{MODEL}": path / MODEL, "/graphs/fbank.onnx": BUNDLED}
    for name in RUNTIME:
        found[f"/runtime/{name}"] = runtime / name
        if not (runtime / name).is_file():
            raise LeapformerError(
                f"{runtime} has no {name}; run `npm install onnxruntime-web` here, or give its folder dist by "
                "--onnxruntime-web"
            )
    return {address: (_kind(address), file.read_bytes()) for address, file in found.items()}


def sentence_files(model: SentenceModel) -> Files:
    """The network that finds ends of sentences: its graph, and its weights one behind the other, as `translator` tells.

    Raises LeapformerError for one of other frames than the page computes.
    """
    if len(model.mean) != BUNDLED_SIZE[1]:
        raise LeapformerError(
            f"--sentence-ends: a network for {len(model.mean)} filterbank bins, of which the page computes "
            f"{BUNDLED_SIZE[1]}; train one with `leapformer sentence-ends` on such"
        )
    weights = b"".join(np.asarray(getattr(model, name), "<f4").tobytes() for name in model.shapes)
    contents = {"/graphs/sentences.onnx": SENTENCES.read_bytes(), "/graphs/sentences.bin": weights}
    return {address: (_kind(address), content) for address, content in contents.items()}


def translator(system: System, decoding: DecodingOptions, segments: SegmentOptions) -> dict[str, Any]:
    """What the browser's translator is told, as JSON values."""
    parts = {"decoding": decoding, "segments": segments}
    found: dict[str, Any] = {name: dict(vars(part)) for name, part in parts.items()}
    found["policy"] = {"name": system.policy.name, **system.policy.values}
    if (model := segments.sentences) is not None:
        found["segments"]["sentences"] = {"ahead": model.ahead, "threshold": model.threshold, "shapes": model.shapes}
    return {**found, "step_frames": system.step_frames}


class Hosts:
    """The names by which a browser may call a server: addresses, localhost, this machine's name, and those given.

    A page of another site can make its own name mean this machine's address, but not an address itself: whoever calls
    by another name is refused.
    """

    def __init__(self, names: Collection[str]) -> None:
        """Raises LeapformerError for what is no name."""
        self._names = {"localhost", socket.gethostname().lower()}
        for name in names:
            if not NAME.fullmatch(name):
                raise LeapformerError(f"--allow-host {name}: give a name alone, without https:// and port")
            self.add(name)

    def add(self, host: str) -> None:
        """Another one, such as that which the server listens at. Browsers send letters of other scripts as ASCII."""
        with suppress(UnicodeError):
            host = host.encode("idna").decode()
        self._names.add(host.lower())

    def allows(self, host: str) -> bool:
        """Whether a request with this Host header is answered."""
        name = urlsplit(f"//{host}").hostname or ""
        with suppress(ValueError):
            ipaddress.ip_address(name)
            return True
        return name in self._names

    def refusal(self, request: Request) -> Response | None:
        """What is answered to others; None to who calls by a name that is known."""
        host = request.headers.get("Host", "")
        if self.allows(host):
            return None
        name = "".join(letter for letter in host[:80] if letter.isprintable())
        return response(403, "Forbidden", "text/plain", f"not known as {name!r}; start with --allow-host\n".encode())


def token_of(request: Request) -> str:
    """What is given as `?token=`."""
    return parse_qs(urlsplit(request.path).query).get("token", [""])[0]


def unauthorized() -> Response:
    """What is answered to who does not know the token."""
    return response(401, "Unauthorized", "text/plain", b"add ?token=TOKEN, as the server has printed it\n")


def answer(files: Files, request: Request) -> Response:
    """A file, or that there is none."""
    path = urlsplit(request.path).path
    if path not in files:
        return response(404, "Not Found", "text/plain", b"no such page\n")
    host = request.headers.get("Host", "")
    # Older browsers do not count WebSockets as 'self'.
    return response(200, "OK", *files[path], f" ws://{host} wss://{host}" if HOST.fullmatch(host) else "")


def response(status: int, phrase: str, kind: str, body: bytes, sockets: str = "") -> Response:
    """What is answered to a request that is not for a WebSocket; `sockets`: where else the page may connect to."""
    kind += "; charset=utf-8" if kind.startswith("text/") else ""
    headers = {"Content-Type": kind, "Content-Length": str(len(body)), "Connection": "close", **HEADERS}
    headers["Content-Security-Policy"] = POLICY.format(sockets=sockets)
    return Response(status, phrase, Headers(headers), body)


Answer = Callable[[ServerConnection, Request], Response | None]


async def listen(host: str, port: int, process_request: Answer, **options: Any) -> Server:
    """`websockets.serve`. Raises LeapformerError for an address that cannot be had."""
    silent = dict[ServerConnection, None]()

    class Connection(ServerConnection):
        """One of many that are open and say nothing gives way, the oldest first."""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            silent[self] = None
            if len(silent) > SILENT:
                oldest = next(iter(silent))
                del silent[oldest]
                oldest.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            silent.pop(self, None)
            super().connection_lost(exc)

    def asked(connection: ServerConnection, request: Request) -> Response | None:
        silent.pop(connection, None)
        try:
            return process_request(connection, request)
        except (ValueError, LookupError):  # no address, or two Host headers
            return response(400, "Bad Request", "text/plain", b"malformed request\n")

    times: dict[str, Any] = {"close_timeout": CLOSE_S, "ping_interval": PING_S, "ping_timeout": PING_S}
    try:
        return await serve(
            host=host, port=port, create_connection=Connection, process_request=asked, **times, **options
        )
    except OSError as error:
        raise LeapformerError(f"cannot listen at {host}:{port} ({error.strerror}); give another --port") from error


class FileServer:
    """Serves files and nothing else, with a `token` only to who opened the page with it."""

    def __init__(self, files: Files, token: str | None = None, hosts: Collection[str] = ()) -> None:
        self.files, self.token, self.hosts = files, token, Hosts(hosts)

    async def start(self, host: str, port: int) -> Server:
        """Listen; the caller closes what is returned. Raises LeapformerError for an address that cannot be had."""
        self.hosts.add(host)
        return await listen(host, port, handler=self._refused, process_request=self._request)

    def close(self) -> None:
        """Nothing is left to be ended."""

    def _request(self, connection: ServerConnection, request: Request) -> Response:
        if refusal := self.hosts.refusal(request):
            return refusal
        if self.token is None:
            return answer(self.files, request)
        asked = token_of(request)
        cookie, worth = SimpleCookie(request.headers.get("Cookie", "")).get(COOKIE), digest(self.token)
        given = [digest(asked), cookie.value if cookie else ""]
        if not any(hmac.compare_digest(one.encode(), worth.encode()) for one in given):
            return unauthorized()
        found = answer(self.files, request)
        if asked:  # the page's own files are asked for without it
            found.headers["Set-Cookie"] = f"{COOKIE}={worth}; HttpOnly; SameSite=Strict; Path=/"
        return found

    async def _refused(self, connection: ServerConnection) -> None:
        """No connection gets so far."""


def _below(folder: Traversable, path: str = "") -> Iterator[tuple[str, Traversable]]:
    """All files, with their paths."""
    for one in folder.iterdir():
        if one.is_dir():
            yield from _below(one, f"{path}{one.name}/")
        else:
            yield f"{path}{one.name}", one


def _kind(name: str) -> str:
    return mimetypes.guess_type(name)[0] or "application/octet-stream"

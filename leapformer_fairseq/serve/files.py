"""The files of the page over HTTP: with a server that translates, or with a model that the browser runs itself."""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from ..errors import LeapformerError
from ..runtime.folder import GRAPHS, MODEL, SPEECH, WEIGHTS, Folder

# Pages load nothing from other sites, and only code of their own; onnxruntime-web compiles WebAssembly.
POLICY = "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self' ws: wss:; frame-ancestors 'none'"
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
RUNTIME = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")  # of onnxruntime-web

Files = dict[str, tuple[str, bytes]]  # kind and content by path


def page_files(about: Mapping[str, Any]) -> Files:
    """The page, and what it is told of the model."""
    page = resources.files(__package__) / "page"
    files = {f"/{name}": (_kind(name), file.read_bytes()) for name, file in _below(page)}
    files["/"] = files.pop("/index.html")
    files["/config.json"] = ("application/json", json.dumps(dict(about)).encode())
    return files


def model_files(path: Path, runtime: Path) -> Files:
    """An exported model for speech and, from its folder, onnxruntime-web.

    Raises LeapformerError where a file of the runtime is missing, or one of the model damaged.
    """
    folder = Folder.read(path)
    found = {f"/model/{name}": folder.file(name) for name in (WEIGHTS, *GRAPHS[SPEECH])}
    found[f"/model/{MODEL}"] = path / MODEL
    for name in RUNTIME:
        found[f"/runtime/{name}"] = runtime / name
        if not (runtime / name).is_file():
            raise LeapformerError(
                f"{runtime} has no {name}; run `npm install onnxruntime-web` here, or give its folder dist by "
                "--onnxruntime-web"
            )
    return {path: (_kind(path), file.read_bytes()) for path, file in found.items()}


def answer(files: Files, request: Request) -> Response:
    """A file, or that there is none."""
    path = urlsplit(request.path).path
    if path not in files:
        return response(404, "Not Found", "text/plain", b"no such page\n")
    return response(200, "OK", *files[path])


def response(status: int, phrase: str, kind: str, body: bytes) -> Response:
    """What is answered to a request that is not for a WebSocket."""
    kind += "; charset=utf-8" if kind.startswith("text/") else ""
    headers = {"Content-Type": kind, "Content-Length": str(len(body)), "Connection": "close", **HEADERS}
    return Response(status, phrase, Headers(headers), body)


async def listen(host: str, port: int, **options: Any) -> Server:
    """`websockets.serve`. Raises LeapformerError for an address that cannot be had."""
    try:
        return await serve(host=host, port=port, **options)
    except OSError as error:
        raise LeapformerError(f"cannot listen at {host}:{port} ({error.strerror}); give another --port") from error


class FileServer:
    """Serves files and nothing else."""

    token = None

    def __init__(self, files: Files) -> None:
        self.files = files

    async def start(self, host: str, port: int) -> Server:
        """Listen; the caller closes what is returned. Raises LeapformerError for an address that cannot be had."""
        return await listen(host, port, handler=self._refused, process_request=self._request)

    def close(self) -> None:
        """Nothing is left to be ended."""

    def _request(self, connection: ServerConnection, request: Request) -> Response:
        return answer(self.files, request)

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

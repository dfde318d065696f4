"""A headless Chromium with a recording as its microphone, driven over the DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from websockets.sync.client import connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--remote-debugging-port=0", "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream", "--autoplay-policy=no-user-gesture-required", "--window-size=1100,750",
)  # fmt: skip
PATIENCE_S = 60.0


class Browser:
    """One page of it; `complaints` is what the page wrote to its console, and its errors."""

    def __init__(self, folder: Path, microphone: Path | None = None) -> None:
        assert CHROMIUM is not None
        sound = [f"--use-file-for-fake-audio-capture={microphone}%noloop"] if microphone else []
        self._process = subprocess.Popen(
            [CHROMIUM, *OPTIONS, *sound, f"--user-data-dir={folder}", "about:blank"], stderr=subprocess.DEVNULL
        )
        self._numbers, self.complaints = itertools.count(1), list[str]()
        told = folder / "DevToolsActivePort"
        until(told.is_file, "Chromium is up")
        self._port = until(lambda: told.read_text().partition("\n")[0], "Chromium's port")
        self._open_page()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def go(self, url: str) -> None:
        """Open a page, or load it again."""
        self.evaluate("window.left = true")
        self._call("Page.navigate", url=url)
        until(lambda: self.evaluate("!window.left && document.readyState === 'complete'"), f"{url} is loaded")

    def evaluate(self, script: str) -> Any:
        """The value of an expression on the page, as a user's gesture."""
        answer = self._call(
            "Runtime.evaluate", expression=script, awaitPromise=True, userGesture=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def click(self, name: str) -> None:
        """A button by its id, which must be enabled."""
        assert not self.evaluate(f"document.getElementById('{name}').disabled"), name
        self.evaluate(f"document.getElementById('{name}').click()")

    def text(self, name: str) -> str:
        """What an element shows."""
        return str(self.evaluate(f"document.getElementById('{name}').innerText"))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the DevTools protocol."""
        return self._call(method, **parameters)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def _open_page(self) -> None:
        import urllib.request

        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self._port}/json") as answer:
            page = next(entry for entry in json.load(answer) if entry["type"] == "page")
        self._socket = connect(page["webSocketDebuggerUrl"], max_size=None, proxy=None)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number, end = next(self._numbers), time.monotonic() + PATIENCE_S
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (answer := json.loads(self._socket.recv(end - time.monotonic()))).get("id") != number:
            if answer["method"] in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
                self.complaints.append(json.dumps(answer["params"])[:500])
        return dict(answer.get("result", answer))


def until(found: Callable[[], Any], about: str) -> Any:
    """The first true value; an AssertionError if it takes too long."""
    start = time.monotonic()
    while not (value := found()):
        assert time.monotonic() - start < PATIENCE_S, f"waited {PATIENCE_S:g} s: {about}"
        time.sleep(0.05)
    return value

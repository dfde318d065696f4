"""`leapformer serve`: translate live on a page in the browser."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
import os
import secrets
import signal
import sys
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from ...support.errors import LeapformerError
from ...support.options import DEVICE, flag
from ..audio import SAMPLE_RATE
from ..serve import files
from ..serve.files import FileServer
from ..serve.server import LiveServer
from ..serve.talk import Limits
from ..serve.texts import Texts, state_folder
from ..simul.live import LoadSessions, load_sessions
from ..simul.options import SEGMENT_OPTIONS, SYSTEM_OPTIONS, own_options, segment_options

LIMITS = "\n".join(
    f"{flag(f'max_{limit.name}')} N:{type(limit.default).__name__} = {limit.default}  {limit.metadata['about']}"
    for limit in fields(Limits)
)
OPTIONS = f"""
{SYSTEM_OPTIONS}
{SEGMENT_OPTIONS}
--in-browser            only serve files: the browser itself translates, with a folder made by `leapformer export` as
                        --checkpoint
--onnxruntime-web DIR:path = node_modules/onnxruntime-web/dist  with --in-browser: its folder dist
--host HOST = 127.0.0.1  address to listen at (default: 127.0.0.1, for this machine alone)
--port PORT:int = 8000  0: any that is free
--token TOKEN           what clients must know (default: none on this machine alone, else a random one)
--allow-host NAME*      a name by which browsers call this server, such as that of a proxy; addresses, localhost and
                        this machine's name are known; may be repeated
--talks DIR:path        where the texts of talks are kept, a file each (default: leapformer/talks below the user's
                        folder of states)
--no-talks              keep no texts: they end with the server
--open                  open the page in a browser on this machine
--title TITLE           what the page calls the model (default: the name of its folder)
{LIMITS}
{DEVICE}
"""


more_options = own_options


def run(
    args: argparse.Namespace,
    load_sessions: LoadSessions = load_sessions,
    prepare_thread: Callable[[], None] | None = None,
) -> int:
    """Serve until Ctrl-C or SIGTERM. `prepare_thread` is what every thread that translates calls first."""
    logging.getLogger("websockets.server").setLevel(logging.CRITICAL)  # each broken handshake, with a traceback
    server = _server(args, load_sessions, prepare_thread)
    asyncio.run(_serve(server, args))
    if getattr(server, "busy", False):  # Python waits for threads, and a pass of a model may take long
        sys.stdout.flush()
        os._exit(0)
    return 0


CLOSE_S = 1.5  # for connections to end


async def _serve(server: LiveServer | FileServer, args: argparse.Namespace) -> None:
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    listening = await server.start(args.host, args.port)
    port = listening.sockets[0].getsockname()[1]
    query = f"?token={quote(server.token, safe='')}" if server.token else ""
    host = f"[{args.host}]" if ":" in args.host else args.host
    page = f"http://{host}:{port}/{query}"
    print(f"open {page} in a browser; Ctrl-C ends the server", flush=True)
    if isinstance(texts := getattr(server, "texts", None), Texts):
        print(f"texts of talks are kept in {texts.folder} (--no-talks: nowhere)", flush=True)
    if args.open and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):  # else it may be one of text
        loop.run_in_executor(None, webbrowser.open, page)
    if not _is_local(args.host):
        print("browsers give their microphone to pages at localhost or over https only: put an https proxy in front")
    await stopped.wait()
    server.close()
    listening.close()
    with suppress(TimeoutError):
        await asyncio.wait_for(listening.wait_closed(), CLOSE_S)


def _server(
    args: argparse.Namespace, load_sessions: LoadSessions, prepare_thread: Callable[[], None] | None
) -> LiveServer | FileServer:
    limits = Limits(**{limit.name: getattr(args, f"max_{limit.name}") for limit in fields(Limits)})
    if not 0 <= args.port < 65_536:
        raise LeapformerError(f"--port {args.port}: give 1 to 65535, or 0 for any that is free")
    path = Path(args.checkpoint).resolve()
    if args.in_browser:
        _check_browser(args, path)
    system, options, create = load_sessions(args)
    about: dict[str, Any] = {
        "model": args.title or (path if path.is_dir() else path.parent).name,
        "between": "" if options.unit == "char" else " ",
        "lagging": system.policy.values.get("k"),
    }
    if args.in_browser:
        segments = segment_options(args)
        about["local"] = files.translator(system, options, segments)
        served = {**files.page_files(about), **files.model_files(path, args.onnxruntime_web)}
        if segments.sentences is not None:
            served |= files.sentence_files(segments.sentences)
        return FileServer(served, _token(args), args.allow_host)
    _warm_up(create(True))
    texts = None if args.no_talks else Texts(args.talks or state_folder())
    return LiveServer(create, about, limits, _token(args), options.unit, prepare_thread, texts, args.allow_host)


def _token(args: argparse.Namespace) -> str | None:
    """What clients must know."""
    return args.token or (None if _is_local(args.host) else secrets.token_urlsafe(12))


def _check_browser(args: argparse.Namespace, path: Path) -> None:
    """Raises LeapformerError for what the browser's translator, and a server of files, do not do."""
    if not path.is_dir():
        raise LeapformerError(f"--in-browser with {path}; give a folder made by `leapformer export` as --checkpoint")
    if args.policy not in files.POLICIES:
        raise LeapformerError(
            f"--policy {args.policy} with --in-browser, which has only {', '.join(files.POLICIES)}; leave one out"
        )
    only_ones: dict[str, Any] = {"carry": "none", "num_threads": 1, "beam": 1, "policy_file": []}
    only_ones |= {"talks": None, "no_talks": False, **{f"max_{limit.name}": limit.default for limit in fields(Limits)}}
    for option, only in only_ones.items():
        value = getattr(args, option)
        if value != only:
            raise LeapformerError(f"{flag(option)} {value} with --in-browser, which does not have it; leave one out")
    if args.history == "window" and args.policy != "wait-k":
        raise LeapformerError(
            f"--history window with --policy {args.policy} and --in-browser: exported models do not tell what they "
            "attend to, which says what to forget; take --policy wait-k"
        )


def _warm_up(session: Any) -> None:
    """What is loaded or compiled at the first use is ready before the first speaker comes."""
    noise = np.random.default_rng(0).normal(0, 0.1, 2 * SAMPLE_RATE).astype(np.float32)
    for _ in (*session.push(noise), *session.finish()):
        pass


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

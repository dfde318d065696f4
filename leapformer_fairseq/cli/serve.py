"""`leapformer serve`: live speech translation on a web page, or for clients of simulstream."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
import secrets
import signal
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import LeapformerError

if TYPE_CHECKING:
    from ..serve.server import LiveServer

HELP = "translate speech live on a page in the browser: microphone or file in, text out, several speakers and listeners"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    from ..agents.options import add_segment_options, add_system_options
    from ..serve.talk import Limits

    add = parser.add_argument
    add_system_options(parser)
    add_segment_options(parser)
    add("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1, for this machine alone)")
    add("--port", type=int, default=8000, help="0: any that is free (default: 8000)")
    add("--token", help="what clients must know (default: none on this machine alone, else a random one)")
    add("--title", help="what the page calls the model (default: the name of its folder)")
    for limit in fields(Limits):
        add(f"--max-{limit.name.replace('_', '-')}", type=type(limit.default), default=limit.default, metavar="N",
            help=f"{limit.metadata['about']} (default: %(default)s)")  # fmt: skip
    add("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    try:
        import websockets  # noqa: F401
    except ImportError as error:
        raise LeapformerError("serve needs websockets; pip install 'leapformer_fairseq[live]'") from error
    logging.getLogger("websockets.server").setLevel(logging.CRITICAL)  # each broken handshake, with a traceback
    asyncio.run(_serve(_server(args), args))
    return 0


async def _serve(server: LiveServer, args: argparse.Namespace) -> None:
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    listening = await server.start(args.host, args.port)
    port = listening.sockets[0].getsockname()[1]
    query = f"?token={server.token}" if server.token else ""
    host = f"[{args.host}]" if ":" in args.host else args.host
    print(f"open http://{host}:{port}/{query} in a browser; Ctrl-C ends the server", flush=True)
    if not _is_local(args.host):
        print("browsers give their microphone to pages at localhost or over https only: put an https proxy in front")
    await stopped.wait()
    listening.close()
    server.close()
    await listening.wait_closed()


def _server(args: argparse.Namespace) -> LiveServer:
    from ..agents.live import load_sessions
    from ..serve.server import LiveServer
    from ..serve.talk import Limits

    limits = Limits(**{limit.name: getattr(args, f"max_{limit.name}") for limit in fields(Limits)})
    if not 0 <= args.port < 65_536:
        raise LeapformerError(f"--port {args.port}: give 1 to 65535, or 0 for any that is free")
    system, options, make = load_sessions(args)
    _warm_up(make(True))
    path = Path(args.checkpoint).resolve()
    about: dict[str, Any] = {
        "model": args.title or (path if path.is_dir() else path.parent).name,
        "between": "" if options.unit == "char" else " ",
        "lagging": system.policy.k if system.policy.name == "wait-k" else None,
    }
    token = args.token or (None if _is_local(args.host) else secrets.token_urlsafe(12))
    return LiveServer(make, about, limits, token, options.unit, args.num_threads)


def _warm_up(session: Any) -> None:
    """What is loaded or compiled at the first use is ready before the first speaker comes."""
    import numpy as np

    noise = np.random.default_rng(0).normal(0, 0.1, 2 * 16_000).astype(np.float32)
    for _ in (*session.push(noise), *session.finish()):
        pass


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

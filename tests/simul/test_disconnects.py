"""Talks in real time, by the page's own script in node, through networks that are lost for 0.1 to 30 seconds.

`TALKS=20 DISCONNECTS=10 TALKS_REPORT=FILE` is what docs/results/talks.md shows; `SEED` chooses others.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("websockets", reason="the extra live")

from leapformer_fairseq.runtime.audio import SAMPLE_RATE  # noqa: E402
from leapformer_fairseq.support.signature import environment  # noqa: E402
from tests.simul.test_live_faults import (  # noqa: E402, F401
    NODE,
    Network,
    in_node,
    live,
    nobody_speaks_on,
    recorded,
    text_of,
)
from tests.simul.test_serve import Running, alone, heard  # noqa: E402

TALKS, DISCONNECTS, SEED = (
    int(os.environ.get(name, default)) for name, default in (("TALKS", 3), ("DISCONNECTS", 3), ("SEED", 0))
)
SHORTEST_S, LONGEST_S = 0.1, 30.0
BETWEEN_S = 2.0, 10.0  # two disconnects
EACH_S = 22  # of a talk, for a disconnect; on average it and the time before it take 11
RELOAD_EVERY = 700  # pieces of 80 ms; the page is also loaded again at the end of the talk


async def troubles(network: Network, rng: random.Random, seconds: float) -> list[dict[str, Any]]:
    """All disconnects of a talk. The last begins a moment before the talk ends, or later if others took long."""
    began, found = time.monotonic(), list[dict[str, Any]]()
    for number in range(DISCONNECTS):
        wait = rng.uniform(*BETWEEN_S)
        lasts = math.exp(rng.uniform(math.log(SHORTEST_S), math.log(LONGEST_S)))
        if number == DISCONNECTS - 1:
            wait = max(wait, began + seconds - 0.5 - time.monotonic())
        await asyncio.sleep(wait)
        at = round(time.monotonic() - began, 1)
        found.append({"at_s": at, "kind": await network.trouble(rng, lasts), "seconds": round(lasts, 2)})
    return found


async def spoken(server: Running, samples: np.ndarray, rng: random.Random, folder: Path) -> dict[str, Any]:
    """What one talk sent, what was heard of it, and its text."""
    folder.mkdir()
    async with Network(lambda: server.port) as network:
        client = await in_node(f"ws://127.0.0.1:{network.port}/", samples, folder, 80, RELOAD_EVERY)
        done = asyncio.create_task(client.communicate())
        lost = await troubles(network, rng, len(samples) / SAMPLE_RATE)
        said = json.loads((await done)[0])
        talk = server.server.talks[said["name"]]
        assert talk.text is None and [vars(event) for event in talk.history] == said["events"]
        return {"heard": np.concatenate(talk.session.heard), "events": said["events"], "disconnects": lost}


@pytest.mark.full
@pytest.mark.skipif(NODE is None, reason="no node")
def test_talks_through_disconnects_in_real_time(recorded, speech, tmp_path):  # noqa: F811
    """Every sample is heard once and in order, and the text is that of an undisturbed talk."""
    make, _ = recorded
    talks = [speech(float(EACH_S * DISCONNECTS), seed) for seed in range(TALKS)]
    draws = [random.Random(f"{SEED} {number}") for number in range(TALKS)]

    async def body() -> list[dict[str, Any]]:
        async with live(make, talks=TALKS) as server:
            each = zip(talks, draws, range(TALKS), strict=True)
            return await asyncio.gather(*(spoken(server, one, rng, tmp_path / str(i)) for one, rng, i in each))

    rows = []
    for number, (samples, found) in enumerate(zip(talks, asyncio.run(body()), strict=True)):
        came, expected = found["heard"], [vars(event) for event in alone(make, samples) if event.final]
        rows.append({
            "talk": number,
            "seconds": len(samples) / SAMPLE_RATE,
            "samples": len(samples),
            "heard": len(came),
            "once_and_in_order": bool(np.array_equal(came, heard(samples))),
            "words": sum(len(text.split()) for text, _ in text_of(expected)),
            "same_text": text_of(found["events"]) == text_of(expected),
            "disconnects": found["disconnects"],
        })  # fmt: skip
    if report := os.environ.get("TALKS_REPORT"):
        about = {"talks": TALKS, "disconnects": DISCONNECTS, "seed": SEED, "environment": environment()}
        Path(report).write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    assert all(row["once_and_in_order"] and row["same_text"] for row in rows), rows

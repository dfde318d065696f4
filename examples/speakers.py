"""How many speakers does a running `leapformer serve` bear? Each sends a recording as fast as it is spoken.

The recording is mono, at 16 kHz.

python examples/speakers.py ws://localhost:8000/ RECORDING.wav 1 2 4 8

A line of JSON for each number of speakers: the largest real-time factor of a talk, and the milliseconds from sending
the last sample that a final word is of to receiving the word.
"""

import asyncio
import json
import statistics
import sys
import time

import soundfile
from websockets.asyncio.client import ClientConnection, connect

RATE, PIECE = 16_000, 1_280  # samples a second, and in a message


async def speak(socket: ClientConnection, pcm: bytes, sent: list[tuple[float, float]]) -> None:
    """Send all pieces when they are due; `sent`: after how many seconds of audio, and when."""
    start = time.perf_counter()
    for first in range(0, len(pcm), 2 * PIECE):
        await asyncio.sleep(start + first / 2 / RATE - time.perf_counter())
        await socket.send(pcm[first : first + 2 * PIECE])
        sent.append((min(len(pcm), first + 2 * PIECE) / 2 / RATE, time.perf_counter()))
    await socket.send(json.dumps({"end_of_stream": True}))


async def talk(url: str, pcm: bytes, wait: float) -> tuple[float, list[float]]:
    """The real-time factor at the end, and the delays of final words in ms."""
    await asyncio.sleep(wait)  # speakers do not begin at the same moment
    async with connect(url, max_size=None, proxy=None) as socket:
        await socket.send(json.dumps({"sample_rate": RATE, "drafts": True}))
        sent, delays, rtf = list[tuple[float, float]](), list[float](), 0.0
        speaking = asyncio.create_task(speak(socket, pcm, sent))
        async for message in socket:
            now, told = time.perf_counter(), json.loads(message)
            if "error" in told:
                sys.exit(f"the server says: {told['error']}")
            rtf = told.get("rtf", rtf)
            for event in told.get("events", []):
                if event["final"] and event["text"]:
                    when = next((at for seconds, at in sent if seconds >= event["audio_s"]), now)
                    delays.append(1000 * (now - when))
            if told.get("end_of_processing"):
                break
        await speaking
    return rtf, delays


async def main(url: str, recording: str, *numbers: str) -> None:
    samples, rate = soundfile.read(recording, dtype="int16")
    if rate != RATE or samples.ndim > 1:
        sys.exit(f"{recording} has {rate} Hz and shape {samples.shape}; give mono audio at {RATE} Hz")
    for count in map(int, numbers):
        found = await asyncio.gather(*(talk(url, samples.tobytes(), i / count) for i in range(count)))
        delays = sorted(delay for _, some in found for delay in some)
        print(
            json.dumps(
                {
                    "speakers": count,
                    "seconds": len(samples) / RATE,
                    "words": len(delays),
                    "rtf": max(rtf for rtf, _ in found),
                    "median_ms": statistics.median(delays),
                    "p95_ms": delays[min(len(delays) - 1, round(0.95 * len(delays)))],
                }
            ),
            flush=True,
        )


asyncio.run(main(*sys.argv[1:]))

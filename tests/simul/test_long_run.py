"""One agent process and hundreds of utterances: it gets no larger, and the last is translated as the first."""

from __future__ import annotations

import argparse
import gc
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("simuleval")

from leapformer_fairseq.simul import LeapformerAgent  # noqa: E402
from tests.covering import kept  # noqa: E402
from tests.simul.test_agent import drive  # noqa: E402
from tests.simul.test_loading import PLAN, data_root  # noqa: E402, F401  (a fixture)
from tests.simul.test_session import held_bytes  # noqa: E402
from tests.untrained import save_checkpoint  # noqa: E402

ENCODERS = {"whole": [], "chunks": ["--encoder-chunk-ms", "200"]}
SIZES = {"encoder-layers": 1, "decoder-layers": 1, "encoder-embed-dim": 16, "encoder-ffn-embed-dim": 16}
TINY = [word for size, value in SIZES.items() for word in (f"--{size}", str(value))]


@pytest.fixture(params=kept(ENCODERS, "chunks"))
def agent(request, tmp_path: Path, data_root: Path) -> LeapformerAgent:  # noqa: F811
    flags = ["--waitk-lagging", "2", "--fixed-pre-decision-ratio", "5", *TINY, *ENCODERS[request.param]]
    checkpoint = save_checkpoint(tmp_path / "checkpoint.pt", data_root, "leapformer_simulst_tiny", *PLAN, *flags)
    parser = argparse.ArgumentParser()
    LeapformerAgent.add_args(parser)
    options = ["--checkpoint", str(checkpoint), "--data-root", str(data_root), "--max-len-b", "3"]
    args = parser.parse_args([*options, "--num-threads", "1"])
    args.output = None
    return LeapformerAgent.from_args(args)


def size(agent: Any) -> tuple[int, int]:
    """Bytes of tensors and arrays that the agent holds, and objects in this process that can hold others."""
    while gc.collect():  # garbage of other tests may free more garbage
        pass
    return held_bytes(agent), len(gc.get_objects())


@pytest.mark.parametrize("turns", [13, pytest.param(200, marks=pytest.mark.full)])
def test_many_utterances_leave_nothing(agent, speech, turns: int) -> None:
    spoken = [speech(0.45, seed) for seed in range(5)]
    first, sizes = [drive(agent, samples, segment_ms=200).text for samples in spoken], []
    for turn in range(1, turns):
        assert [drive(agent, samples, segment_ms=200).text for samples in spoken] == first
        if turn in (3, turns - 1):
            sizes.append(size(agent))
    assert any(first)
    (bytes_early, objects_early), (bytes_late, objects_late) = sizes
    assert bytes_late == bytes_early
    assert objects_late - objects_early < 40  # one kept for each utterance would be 45 and more
    agent.kept = [agent.build_states() for _ in range(10)]  # what the counts would find
    for states, samples in zip(agent.kept, spoken * 2, strict=True):
        drive(agent, samples, segment_ms=200, states=states)
    bytes_kept, objects_kept = size(agent)
    assert bytes_kept > bytes_late and objects_kept - objects_late > 100

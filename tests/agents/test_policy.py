from __future__ import annotations

import pytest

from leapformer_fairseq.agents.policy import Decision, WaitK
from leapformer_fairseq.errors import LeapformerError


def steps_read_before_each_write(policy: WaitK, n_steps: int, n_tokens: int) -> list[int]:
    """Play the policy to the end; the number of steps read when token 0, 1, ... is written."""
    read, written = 0, []
    while len(written) < n_tokens:
        if policy.decide(read, len(written), source_done=read == n_steps) is Decision.WRITE:
            written.append(read)
        else:
            read += 1
    return written


def check_wait_k(policy: WaitK, k: int) -> None:
    for n_steps in range(12):
        for n_tokens in range(15):
            expected = [min(n_steps, t + k) for t in range(n_tokens)]
            if steps_read_before_each_write(policy, n_steps, n_tokens) != expected:
                raise AssertionError(f"not wait-{k} on {n_steps} steps and {n_tokens} tokens")


@pytest.mark.parametrize("k", [1, 2, 3, 5, 20])
def test_reads_exactly_k_steps_ahead(k: int) -> None:
    check_wait_k(WaitK(k), k)


def test_the_check_finds_a_policy_that_reads_one_step_too_many() -> None:
    with pytest.raises(AssertionError, match="not wait-3"):
        check_wait_k(WaitK(4), 3)


def test_does_not_read_past_the_end() -> None:
    assert WaitK(3).decide(0, 0, source_done=True) is Decision.WRITE


@pytest.mark.parametrize("k", [0, -1])
def test_refuses_k_below_one(k: int) -> None:
    with pytest.raises(LeapformerError, match="k >= 1"):
        WaitK(k)

"""Latency of simultaneous speech-to-text translation.

Notation: D[i] is the duration of the source, in milliseconds, that had been heard when unit i (from 1, of n) was
written; S is the duration of the whole source in milliseconds, R the number of units of the reference. With `elapsed`
times instead of delays (source heard plus computation until then), the same functions are the computation-aware scores
AL_CA, LAAL_CA, ... Values equal those of SimulEval 1.1.4's scorer classes. An utterance without output has no latency.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from ..runtime.formats.runlog import Instance, count_units

SOURCE_TOKEN_MS = 300.0  # the duration of a source token that Average Token Delay assumes for speech
LOW_MS, HIGH_MS = 2000.0, 4000.0  # upper limits of the latency regimes


def average_lagging(times: Sequence[float], source_length: float, reference_units: int) -> float:
    """AL, milliseconds: mean lag behind a translator that writes R units evenly over the source.

    AL = 1/tau * sum_{i=1..tau} (D[i] - (i - 1) * S / R); tau is the first i with D[i] >= S. Ma et al., 2019
    (arXiv:1810.08398), for speech Ma et al., 2020 (arXiv:2011.02048). Output that is longer than the reference lowers
    it; see LAAL.
    """
    return _lagging(times, source_length, reference_units)


def length_adaptive_average_lagging(times: Sequence[float], source_length: float, reference_units: int) -> float:
    """LAAL, milliseconds: AL with max(R, n) in place of R, so that writing too much is not rewarded.

    Polák et al., 2022 (arXiv:2204.06028), Papi et al., 2022 (arXiv:2206.05807).
    """
    return _lagging(times, source_length, max(reference_units, len(times)))


def average_proportion(times: Sequence[float], source_length: float, reference_units: int) -> float:
    """AP, a ratio: sum_i D[i] / (S * R), the mean share of the source heard per unit.

    Cho and Esipova, 2016 (arXiv:1606.02012).
    """
    return sum(times) / (source_length * reference_units)


def differentiable_average_lagging(times: Sequence[float], source_length: float) -> float:
    """DAL, milliseconds: AL over all n units, each delayed to at least S / n after the one before it.

    DAL = 1/n * sum_i (D'[i] - (i - 1) * S / n), D'[1] = D[1], D'[i] = max(D[i], D'[i - 1] + S / n). Arivazhagan et al.,
    2019 (arXiv:1906.05218).
    """
    pace = source_length / len(times)
    total, spaced = 0.0, -math.inf
    for rank, moment in enumerate(times):
        spaced = max(moment, spaced + pace)
        total += spaced - rank * pace
    return total / len(times)


def average_token_delay(delays: Sequence[float], elapsed: Sequence[float] | None = None) -> float:
    """ATD, milliseconds: mean time from the end of a source token to the end of the corresponding target token.

    The source heard between two writes is cut into tokens of 300 ms (the last one shorter); displaying text takes no
    time. Target token t corresponds to source token t, less the number of tokens by which the previous writes were
    ahead of their source, but at most to the last one heard. With `elapsed`, the computation-aware form: a token ends
    after its computation, which starts after that of the token before it. Kano et al., 2023 (arXiv:2211.13173).
    """
    heard = sorted(set(delays))  # the source position of each write
    source_ends, tokens_heard = _source_tokens(heard)
    compute = _compute_shares(delays, elapsed)
    total, end = 0.0, 0.0
    for rank, (delay, cost) in enumerate(zip(delays, compute, strict=True), 1):
        write = bisect_left(heard, delay)
        source_before = tokens_heard[write - 1] if write else 0
        written_before = bisect_left(delays, delay)
        counterpart = rank - max(0, written_before - source_before)
        end = max(delay, end) + cost
        total += end - source_ends[min(counterpart, tokens_heard[write])]
    return total / len(delays)


def yet_another_average_lagging(
    times: Sequence[float], source_length: float, reference_units: int, end: float | None = None
) -> float | None:
    """YAAL, milliseconds: LAAL of the units written before the whole source was heard; None if there are none.

    Later units do not show how simultaneous a policy is. With `end`, when the recording's last segment ends, it is
    LongYAAL of a segment of a talk: units count until then. Polák et al., 2025 (arXiv:2509.17349).
    """
    limit = source_length if end is None else end
    counted = next((rank for rank, moment in enumerate(times) if moment >= limit), len(times))
    pace = source_length / max(reference_units, len(times)) if times else 0.0
    return sum(moment - rank * pace for rank, moment in enumerate(times[:counted])) / counted if counted else None


def simultaneity(instances: Sequence[Instance], unit: str = "word") -> dict[str, float] | None:
    """Shares that tell whether YAAL describes a policy well, in per cent; None without output.

    SWF: units written before the source ended. EFSW: what SWF would be if all units lagged by YAAL. DSPTV: EFSW - SWF;
    if its absolute value is above 20, the policy is degenerate, e.g. it writes a word early and the rest at the end.
    Polák et al., 2025 (arXiv:2509.17349).
    """
    early = sum(moment < instance.source_length for instance in instances for moment in instance.delays)
    units = sum(len(instance.delays) for instance in instances)
    lags: list[tuple[float, float]] = []  # (source length, YAAL)
    for instance in instances:
        length = instance.source_length
        lag = yet_another_average_lagging(instance.delays, length, _units(instance.reference, unit))
        if lag is not None:
            lags.append((length, lag))
    if not units or not lags:
        return None
    swf = 100 * early / units
    efsw = 100 * sum(max(0.0, length - lag) for length, lag in lags) / sum(length for length, _ in lags)
    return {"SWF": swf, "EFSW": efsw, "DSPTV": efsw - swf}


def latency_scores(instance: Instance, unit: str = "word") -> dict[str, float]:
    """All latencies of an utterance, plain and, if computation was timed, computation-aware (`_CA`).

    There are none if nothing was written.
    """
    if not instance.delays:
        return {}
    reference_units = _units(instance.reference, unit)
    scores: dict[str, float] = {}
    timed = instance.elapsed != instance.delays  # batched decoding has no time per utterance
    for suffix, times in (("", instance.delays), *([("_CA", instance.elapsed)] if timed else [])):
        latencies = _scores(times, instance.source_length, reference_units)
        latencies["ATD"] = average_token_delay(instance.delays, instance.elapsed if suffix else None)
        scores |= {name + suffix: value for name, value in latencies.items()}
    return scores


def long_form_scores(
    times: Sequence[float], source_length: float, reference: str, end: float, unit: str = "word"
) -> dict[str, float]:
    """LongYAAL, LongAL, LongLAAL, LongAP and LongDAL of the text written for one segment of a talk.

    `times`, in milliseconds, are relative to the start of the segment and may be negative; `end`, when the recording's
    last segment ends, is relative to this start, too. StreamLAAL is the mean of LongLAAL (Papi et al., 2024). LongYAAL
    is missing if everything was written after `end`; without output, all scores are missing.
    """
    if not times:
        return {}
    scores = _scores(times, source_length, _units(reference, unit), end)
    return {f"Long{name}": value for name, value in scores.items()}


def regime(long_yaal: float | None) -> str | None:
    """The latency regime of IWSLT 2026, "low" or "high", from LongYAAL in ms without computation; None if outside."""
    if long_yaal is None or not 0 <= long_yaal <= HIGH_MS:
        return None
    return "low" if long_yaal <= LOW_MS else "high"


def _scores(
    times: Sequence[float], source_length: float, reference_units: int, end: float | None = None
) -> dict[str, float]:
    scores = {
        "AL": average_lagging(times, source_length, reference_units),
        "LAAL": length_adaptive_average_lagging(times, source_length, reference_units),
        "AP": average_proportion(times, source_length, reference_units),
        "DAL": differentiable_average_lagging(times, source_length),
    }
    lagging = yet_another_average_lagging(times, source_length, reference_units, end)
    return scores if lagging is None else {**scores, "YAAL": lagging}


def _units(reference: str, unit: str) -> int:
    """Count a reference's units, at least 1, like SimulEval and OmniSTEval: between two spaces is an empty word."""
    return max(1, len(reference.split(" ")) if unit == "word" else count_units(reference, unit))


def _lagging(times: Sequence[float], source_length: float, target_units: int) -> float:
    """The mean lag of the units up to the first one that was written when the whole source had been heard."""
    if times[0] > source_length:  # as in SimulEval
        return times[0]
    heard_all = next((rank for rank, moment in enumerate(times) if moment >= source_length), len(times) - 1)
    pace = source_length / target_units
    return sum(moment - rank * pace for rank, moment in enumerate(times[: heard_all + 1])) / (heard_all + 1)


def _source_tokens(heard: Sequence[float]) -> tuple[list[float], list[int]]:
    """End times of the source tokens, after a 0.0 for the start, and the number of tokens heard at each write."""
    ends, counts = [0.0], []
    for start, stop in pairwise((0.0, *heard)):
        whole, rest = divmod(stop - start, SOURCE_TOKEN_MS)
        lengths = [SOURCE_TOKEN_MS] * int(whole) + ([rest] if rest else [])
        for length in lengths:
            ends.append(ends[-1] + length)
        counts.append(len(ends) - 1)
    return ends, counts


def _compute_shares(delays: Sequence[float], elapsed: Sequence[float] | None) -> list[float]:
    """Milliseconds of computation since the token before; zeros without `elapsed`."""
    if elapsed is None:
        return [0.0] * len(delays)
    spent = [moment - delay for moment, delay in zip(elapsed, delays, strict=True)]
    return [after - before for before, after in pairwise((0.0, *spent))]

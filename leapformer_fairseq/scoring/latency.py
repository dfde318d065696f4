"""Latency of simultaneous speech-to-text translation.

Notation: D[i] in milliseconds is how much source had been heard when unit i (from 1, of n) was written; S is the
duration of the source in milliseconds, R the number of units of the reference. Given `elapsed` times instead of delays
(source heard plus computation until then), the same functions are the computation-aware scores AL_CA, LAAL_CA, ...
Values equal those of SimulEval 1.1.4's scorer classes. An utterance without output has no latency.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from ..runtime.formats.runlog import Instance, count_units

SOURCE_TOKEN_MS = 300.0  # the length of a source word that Average Token Delay assumes for speech
LOW_MS, HIGH_MS = 2000.0, 4000.0  # the ends of the latency regimes


def average_lagging(times: Sequence[float], source_length: float, reference_units: int) -> float:
    """AL, milliseconds: mean lag behind a translator that writes R units evenly over the source.

    AL = 1/tau * sum_{i=1..tau} (D[i] - (i - 1) * S / R); tau is the first i with D[i] >= S. Ma et al. 2019 (arXiv
    1810.08398), for speech Ma et al. 2020 (arXiv 2011.02048). Longer output than the reference lowers it; see LAAL.
    """
    return _lagging(times, source_length, reference_units)


def length_adaptive_average_lagging(times: Sequence[float], source_length: float, reference_units: int) -> float:
    """LAAL, milliseconds: AL with max(R, n) in place of R, so that writing too much is not rewarded.

    Polák et al. 2022 (arXiv 2204.06028), Papi et al. 2022 (arXiv 2206.05807).
    """
    return _lagging(times, source_length, max(reference_units, len(times)))


def average_proportion(times: Sequence[float], source_length: float, reference_units: int) -> float:
    """AP, a ratio: mean share of the source heard per unit, sum_i D[i] / (S * R). Cho and Esipova 2016 (1606.02012)."""
    return sum(times) / (source_length * reference_units)


def differentiable_average_lagging(times: Sequence[float], source_length: float) -> float:
    """DAL, milliseconds: AL over all n units, each at least S / n after the one before it.

    DAL = 1/n * sum_i (D'[i] - (i - 1) * S / n), D'[1] = D[1], D'[i] = max(D[i], D'[i - 1] + S / n). Arivazhagan et al.
    2019 (arXiv 1906.05218).
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
    time. Target token t corresponds to source token t, moved back by the number of tokens that the previous writes were
    ahead of their source, and at most to the last one heard. With `elapsed`, each token ends after its computation, one
    after the other: the computation-aware form. Kano et al. 2023 (arXiv 2211.13173).
    """
    heard = sorted(set(delays))  # the source position of each write
    source_ends, tokens_heard = _source_tokens(heard)
    compute = _compute_shares(delays, elapsed)
    total, end = 0.0, 0.0
    for rank, (delay, cost) in enumerate(zip(delays, compute, strict=True), 1):
        write = bisect_left(heard, delay)
        source_before = tokens_heard[write - 1] if write else 0
        written_before = bisect_left(delays, delay)
        answered = rank - max(0, written_before - source_before)
        end = max(delay, end) + cost
        total += end - source_ends[min(answered, tokens_heard[write])]
    return total / len(delays)


def yet_another_average_lagging(
    times: Sequence[float], source_length: float, reference_units: int, end: float | None = None
) -> float | None:
    """YAAL, milliseconds: LAAL of the units that were written before the whole source was heard; None without any.

    Later units do not show how simultaneous a policy is. With `end`, the time until the recording's last segment ends,
    it is LongYAAL, of a segment of a talk: units count until then. Polák et al., 2025 (arXiv 2509.17349).
    """
    limit = source_length if end is None else end
    counted = next((rank for rank, moment in enumerate(times) if moment >= limit), len(times))
    pace = source_length / max(reference_units, len(times)) if times else 0.0
    return sum(moment - rank * pace for rank, moment in enumerate(times[:counted])) / counted if counted else None


def simultaneity(instances: Sequence[Instance], unit: str = "word") -> dict[str, float] | None:
    """Whether YAAL is a reliable description of a policy, in per cent; None without output.

    SWF: units written before the source ended. EFSW: the value that SWF would have if all units lagged by YAAL. DSPTV:
    their difference; if its absolute value is above 20, the policy is degenerate, e.g. it writes a word early and the
    rest at the end. Polák et al., 2025 (arXiv 2509.17349).
    """
    early = sum(moment < one.source_length for one in instances for moment in one.delays)
    units = sum(len(one.delays) for one in instances)
    lagging = [
        (one.source_length, found)
        for one in instances
        if one.delays
        and (found := yet_another_average_lagging(one.delays, one.source_length, _units(one.reference, unit)))
        is not None
    ]
    if not units or not lagging:
        return None
    swf = 100 * early / units
    efsw = 100 * sum(max(0.0, length - lag) for length, lag in lagging) / sum(length for length, _ in lagging)
    return {"SWF": swf, "EFSW": efsw, "DSPTV": efsw - swf}


def latency_scores(instance: Instance, unit: str = "word") -> dict[str, float] | None:
    """All scores of one utterance, plain and, if computation was timed, computation-aware (`_CA`).

    None if nothing was written.
    """
    if not instance.delays:
        return None
    reference_units = _units(instance.reference, unit)
    scores: dict[str, float] = {}
    timed = instance.elapsed != instance.delays  # batched decoding has no time per utterance
    for suffix, times in (("", instance.delays), *([("_CA", instance.elapsed)] if timed else [])):
        found = _scores(times, instance.source_length, reference_units)
        found["ATD"] = average_token_delay(instance.delays, instance.elapsed if suffix else None)
        scores |= {name + suffix: value for name, value in found.items()}
    return scores


def long_form_scores(
    times: Sequence[float], source_length: float, reference: str, end: float, unit: str = "word"
) -> dict[str, float]:
    """LongYAAL, LongAL, LongLAAL, LongAP and LongDAL of the text written for one segment of a talk.

    `times` are relative to the start of the segment and may be negative; `end` is when the last segment of the
    recording ends, also relative to this start. StreamLAAL is the mean of LongLAAL (Papi et al., 2024). LongYAAL is
    missing if everything was written after the end; without output, all scores are missing.
    """
    if not times:
        return {}
    found = _scores(times, source_length, _units(reference, unit), end)
    return {f"Long{name}": value for name, value in found.items()}


def regime(long_yaal: float | None) -> str | None:
    """The latency regime of IWSLT 2026, from LongYAAL in ms without computation; None outside both."""
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
    """As SimulEval and OmniSTEval count words: two spaces have an empty one between them. At least 1."""
    return max(1, len(reference.split(" ")) if unit == "word" else count_units(reference, unit))


def _lagging(times: Sequence[float], source_length: float, target_units: int) -> float:
    """Mean lag of the units up to the first one that was written with the whole source heard."""
    if times[0] > source_length:
        return times[0]
    heard_all = next((rank for rank, moment in enumerate(times) if moment >= source_length), len(times) - 1)
    pace = source_length / target_units
    return sum(moment - rank * pace for rank, moment in enumerate(times[: heard_all + 1])) / (heard_all + 1)


def _source_tokens(heard: Sequence[float]) -> tuple[list[float], list[int]]:
    """End times of the source tokens, with 0.0 before the first, and how many there are up to each write."""
    ends, counts = [0.0], []
    for start, stop in pairwise((0.0, *heard)):
        whole, rest = divmod(stop - start, SOURCE_TOKEN_MS)
        lengths = [SOURCE_TOKEN_MS] * int(whole) + ([rest] if rest else [])
        for length in lengths:
            ends.append(ends[-1] + length)
        counts.append(len(ends) - 1)
    return ends, counts


def _compute_shares(delays: Sequence[float], elapsed: Sequence[float] | None) -> list[float]:
    """Milliseconds of computation between a token and the one before it; zeros without `elapsed`."""
    if elapsed is None:
        return [0.0] * len(delays)
    spent = [moment - delay for moment, delay in zip(elapsed, delays, strict=True)]
    return [after - before for before, after in pairwise((0.0, *spent))]

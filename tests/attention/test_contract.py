"""What a mechanism promises, each in one sentence: `leapformer check-mechanism` runs these tests first."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from leapformer_fairseq.attention import (
    CAUSAL,
    Features,
    Gate,
    LinearMechanism,
    RecurrentMechanism,
    SlotSums,
    TokenInfo,
    Written,
)
from leapformer_fairseq.attention.linear.relu import ReLULinear
from leapformer_fairseq.support.errors import LeapformerError

from .cases import (
    DIM,
    HEADS,
    MECHANISMS,
    NAMES,
    RECURRENT,
    UNNORMALIZED,
    VARIANTS,
    Mechanism,
    informed,
    inputs,
    make,
    reason,
    serving,
    written,
)

COUNT = 5
# methods that map each token by itself
METHODS: dict[type[Mechanism], tuple[str, ...]] = {
    LinearMechanism: ("map_queries", "map_keys"),
    RecurrentMechanism: ("queries", "written"),
    SlotSums: ("control",),
}
MAPS = [
    pytest.param(name, method, id=f"{name}-{method}")
    for name in NAMES
    if name not in VARIANTS and MECHANISMS[name].capabilities.append  # neither convolutions nor whole sequences
    for base, methods in METHODS.items()
    if issubclass(MECHANISMS[name], base)
    for method in methods
]


# their sums may be negative, and are cut off at the floor, as in their papers
WAVES = ("rfa", "rfa-gate")
MAPPED = [name for name in NAMES if hasattr(MECHANISMS[name], "map_keys") and name not in WAVES]


AVERAGES = sorted({*serving(None), *serving(CAUSAL, state=True)} - {*UNNORMALIZED})


def holds(wrong: str | None) -> None:
    """Fail with one sentence and nothing else if there is one that says what is wrong."""
    if wrong is not None:
        pytest.fail(wrong)


def mapped(mechanism: Mechanism, method: str, x: Tensor, tokens: TokenInfo) -> list[Tensor]:
    """What a method makes of tokens x (B, H, T, D), each (B, H, T, ..)."""
    values = (x,) if method == "written" else ()
    found = getattr(mechanism, method)(x, *values, informed(tokens, x))
    if isinstance(found, Features):
        found = (found.expanded(), found.norm)
    parts = (found,) if isinstance(found, Tensor) else found
    return [part.expand(len(x), HEADS, -1, -1) for part in parts if part is not None]


def differing(old: list[Tensor], new: list[Tensor]) -> Tensor:
    """Where what was mapped differs, (B, T)."""
    differs = [(a - b).abs().amax((1, 3)) > 1e-9 for a, b in zip(old, new, strict=True)]
    return torch.stack(differs).any(0)


def spread(run: Callable[..., list[Tensor]], values: Sequence[Tensor], own: Callable[[int], slice]) -> str | None:
    """Where a change of one token of `values`, each (B, H, T, D), is seen outside of its `own` tokens, in words."""
    before = run(*values)
    for row, token in product(range(len(values[0])), range(COUNT)):
        changed = [x.clone() for x in values]
        for x in changed:
            x[row, :, token] += 1
        differs = differing(before, run(*changed))
        differs[row, own(token)] = False
        for at, other in differs.nonzero().tolist():
            later = ", which comes later" * (own(token).stop is None)
            cause = f"token {token + 1}{later}" if at == row else f"sequence {row + 1}"
            return f"token {other + 1} of sequence {at + 1} changed with {cause}"
    return None


def of_other_tokens(mechanism: Mechanism, method: str) -> str | None:
    """What a method wrongly makes of a token, because of other tokens; None: nothing."""
    x, tokens = inputs(COUNT, COUNT)[0], TokenInfo.whole(COUNT)
    seen = spread(lambda x: mapped(mechanism, method, x, tokens), [x], lambda token: slice(token, token + 1))
    if seen:
        return f"{method}: the features of {seen}; map each token by itself"
    together = mapped(mechanism, method, x, tokens)
    for row, token in product(range(len(x)), range(COUNT)):
        alone = mapped(mechanism, method, x[row, None, :, token, None], tokens.narrow(token, token + 1))
        if differing([part[row, None, :, token, None] for part in together], alone).any():
            return (
                f"{method}: a token has other features alone than among others; let them depend on the token, "
                "tokens.positions and tokens.lengths"
            )
    return None


@pytest.mark.parametrize(("name", "method"), MAPS)
@torch.no_grad()
def test_each_token_is_mapped_by_itself(name, method):
    holds(of_other_tokens(make(name), method))


def growing(mechanism: Mechanism) -> str | None:
    """A log-decay above zero, by which a state grows; None: there is none."""
    x, tokens = 3 * inputs(COUNT, COUNT)[0], TokenInfo.whole(COUNT)
    decay = mechanism.written(x, x, informed(tokens, x)).decay
    if decay is None or decay.max() <= 1e-9:
        return None
    token = int(decay.amax((0, 1, 3)).argmax())
    return (
        f"written: the log-decay of token {token + 1} is {float(decay.max()):.3g}, by which the state grows without "
        "bound; let it be at most 0, as `F.logsigmoid(...)` is"
    )


@pytest.mark.parametrize("name", [name for name in RECURRENT if name not in VARIANTS])
@torch.no_grad()
def test_log_decays_are_at_most_zero(name):
    holds(growing(make(name)))


def negative_sum(mechanism: Mechanism) -> str | None:
    """A sum of similarities below zero, by which nothing can be divided; None: there is none."""
    (q, k, _), tokens = inputs(COUNT, COUNT), TokenInfo.whole(COUNT)
    queries, keys = mechanism.map_queries(q, informed(tokens, q)), mechanism.map_keys(k, informed(tokens, k))
    queries, keys = (one.expanded() if one.norm is None else one.norm for one in (queries, keys))
    sums = (queries @ keys.mT).cumsum(-1)
    for row, _, query, count in (sums < -1e-9).nonzero().tolist()[:1]:
        return (
            f"the similarities of query {query + 1} of sequence {row + 1} with keys 1 to {count + 1} sum to "
            f"{float(sums[row, :, query, count].min()):.3g}, and outputs are divided by such sums; map to features of "
            "at least 0, or give norms that are (`Features(x, norm)`)"
        )
    return None


@pytest.mark.parametrize("name", MAPPED)
@torch.no_grad()
def test_similarities_of_a_query_have_no_negative_sum(name):
    holds(negative_sum(make(name)))


def unlike_at_once(mechanism: Mechanism) -> str | None:
    """How keys that are written in two parts, or with padding, differ from keys that are written at once."""
    (q, k, v), keys = inputs(2, COUNT), TokenInfo.whole(COUNT)
    query = TokenInfo.whole(2).without_lengths()
    at_once = mechanism.read(written(mechanism, k, v, keys), q, query)
    for first in range(1, COUNT) if mechanism.capabilities.append else ():
        state = written(mechanism, k[:, :, :first], v[:, :, :first], keys.narrow(0, first))
        state = mechanism.write(state, k[:, :, first:], v[:, :, first:], keys.narrow(first, COUNT))
        if (mechanism.read(state, q, query) - at_once).abs().max() > 1e-9:
            return f"write: {first} keys and then {COUNT - first} give another state than {COUNT} at once"
    keep = torch.arange(COUNT + 1).expand(2, -1) > 0
    k, v = (F.pad(x, (0, 0, 1, 0), value=3.0) for x in (k, v))
    state = written(mechanism, k, v, TokenInfo.whole(COUNT + 1, keep))
    if (mechanism.read(state, q, query) - at_once).abs().max() > 1e-9:
        return "write: padding, where key.keep is False, was written to the state"
    return None


@pytest.mark.parametrize("name", serving(None, state=True))
@torch.no_grad()
def test_keys_may_be_written_in_parts_and_padding_writes_nothing(name):
    holds(unlike_at_once(make(name)))


def of_later_tokens(mechanism: Mechanism, execution: str) -> str | None:
    """How a causal output depends on a token that it must not see."""
    run = partial(mechanism, mask=CAUSAL, execution=execution)
    seen = spread(lambda *qkv: [run(*qkv)], inputs(COUNT, COUNT), lambda token: slice(token, None))
    return f"the causal output at {seen} ({execution})" if seen else None


@pytest.mark.parametrize("name", serving(CAUSAL, state=True))
@torch.no_grad()
def test_no_token_sees_later_ones_or_other_sequences(name):
    for execution in ("reference", "scan"):
        holds(of_later_tokens(make(name), execution))


def unlike_an_average(mechanism: Mechanism) -> str | None:
    """A sum of a query's weights that is not that of an average: 1, or less where the query matches no key."""
    q, k, _ = inputs(COUNT, COUNT)
    sums = mechanism.weights(q, k, mask=None if reason(mechanism, None) is None else CAUSAL).sum(-1)
    for wrong in sums[(sums < -1e-9) | (sums > 1 + 1e-9)].tolist():
        return (
            f"the weights of a query sum to {wrong:.3g}; if similarities may be negative, give a norm that is not "
            "(`Features(x, norm)`), and if weights are no average, declare `Capabilities(normalized=False)`"
        )
    return None


@pytest.mark.parametrize("name", AVERAGES)
@torch.no_grad()
def test_weights_of_a_query_sum_to_one_or_are_declared_not_to(name):
    holds(unlike_an_average(make(name)))


class OverTheSequence(ReLULinear):
    """Keys that know each other."""

    def map_keys(self, x, tokens):
        return Features(x.softmax(2))


class OverTheCount(ReLULinear):
    """Queries that know how many are mapped."""

    def map_queries(self, x, tokens):
        return Features(x.relu() / x.shape[2])


class OverTheBatch(ReLULinear):
    """Queries that know those of other sequences."""

    def map_queries(self, x, tokens):
        return Features(F.softplus(x - x.mean(0)))


class Signed(ReLULinear):
    """Similarities below zero."""

    def map_queries(self, x, tokens):
        return Features(-F.relu(x))


class WithoutPadding(ReLULinear):
    """A write that takes padding for tokens."""

    def write(self, state, k, v, key):
        return super().write(state, k, v, TokenInfo.whole(k.shape[2]))


class Forgetful(ReLULinear):
    """A write that drops what was written before."""

    def write(self, state, k, v, key):
        return super().write(self.init_state(len(k), v.shape[3], k), k, v, key)


class Wide(ReLULinear):
    """Twice the features that are declared."""

    def map_queries(self, x, tokens):
        return Features(torch.cat([x, -x], -1).relu())

    map_keys = map_queries


class Bare(ReLULinear):
    """A tensor in the place of features."""

    def map_keys(self, x, tokens):
        return x.relu()


@pytest.mark.parametrize(
    ("check", "wrong", "sentence"),
    [
        (
            lambda m: of_other_tokens(m, "map_keys"),
            OverTheSequence,
            "map_keys: the features of token 2 of sequence 1 changed with token 1; map each token by itself",
        ),
        (
            lambda m: of_other_tokens(m, "map_queries"),
            OverTheBatch,
            "map_queries: the features of token 1 of sequence 2 changed with sequence 1; map each token by itself",
        ),
        (
            lambda m: of_other_tokens(m, "map_queries"),
            OverTheCount,
            "map_queries: a token has other features alone than among others; let them depend on the token, tokens.pos",
        ),
        (
            lambda m: of_later_tokens(m, "reference"),
            OverTheSequence,
            r"the causal output at token 2 of sequence 1 changed with token 3, which comes later \(reference\)",
        ),
        (
            lambda m: of_later_tokens(m, "scan"),
            OverTheBatch,
            r"the causal output at token \d of sequence 2 changed with sequence 1 \(scan\)",
        ),
        (
            unlike_an_average,
            Signed,
            r"the weights of a query sum to -[\d.e+]+; if similarities may be negative, give a",
        ),
        (
            negative_sum,
            Signed,
            r"the similarities of query 1 of sequence 1 with keys 1 to \d sum to -[\d.e+]+, and outputs are d",
        ),
        (unlike_at_once, WithoutPadding, "write: padding, where key.keep is False, was written to the state"),
        (unlike_at_once, Forgetful, "write: 1 keys and then 4 give another state than 5 at once"),
    ],
)
@torch.no_grad()
def test_a_broken_promise_is_told_in_one_sentence(check, wrong, sentence):
    with pytest.raises(pytest.fail.Exception, match=sentence):
        holds(check(wrong(DIM, HEADS).double()))
    holds(check(ReLULinear(DIM, HEADS).double()))


class Narrow(RecurrentMechanism):
    """Keys that write fewer features than queries read."""

    averages = False

    def queries(self, q, tokens):
        return q

    def written(self, k, v, tokens):
        return Written(k[..., 1:], v)


class Growing(RecurrentMechanism):
    """Log-decays that rise with the position."""

    averages = False

    def queries(self, q, tokens):
        return q

    def written(self, k, v, tokens):
        return Written(k, v, (tokens.positions[:, None, :, None] / 20).to(k.dtype).expand(len(k), HEADS, -1, 1))


class Unsaid(Growing):
    """A strength without `replaces`."""

    def written(self, k, v, tokens):
        return Written(F.normalize(k, dim=-1), v, None, torch.ones_like(k[..., :1]))


class Said(Growing):
    """`replaces` without a strength."""

    replaces = True


@torch.no_grad()
def test_a_log_decay_above_zero_is_told_in_one_sentence():
    with pytest.raises(pytest.fail.Exception, match="written: the log-decay of token 5 is 0.25, by which the state gr"):
        holds(growing(Growing(DIM, HEADS).double()))


class FewSlots(SlotSums):
    """A control for as many slots as a head is wide."""

    def control(self, k, tokens):
        return k.sigmoid()


class FlatControl(SlotSums):
    """A control without heads."""

    def control(self, k, tokens):
        return k.new_ones(len(k), k.shape[2], self.slots)


class FewHeads(ReLULinear):
    """Features of one head for all."""

    def map_keys(self, x, tokens):
        return Features(x[:, :1].relu())


def writing(written: Callable[[Tensor, Tensor], Any], replaces: bool = False) -> type[RecurrentMechanism]:
    """A recurrence whose keys write this."""
    members = {"written": lambda self, k, v, tokens: written(k, v), "replaces": replaces}
    return type("Writing", (Growing,), members)


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        (Wide, "map_queries gives 16 features of a token, but self.features is 8; set self.features = ... to"),
        (Bare, r"map_keys returned a Tensor; return Features\(x\), x \(B, H, T, F\)"),
        (Narrow, "written gives 7 features of a token, but self.features is 8; set self.features"),
        (Unsaid, "written gives a strength, but replaces is False; give none, or set replaces = True in the cl"),
        (Said, "written gives no strength, but replaces is True; give one, or set replaces = False in the class"),
        (
            writing(lambda k, v: Written(k[:, 0], v)),
            r"written gives keys: \(2, [15], 8\); return \(2, 2, [15], features\), ",
        ),
        (writing(lambda k, v: Written(k[:, :, 1:], v)), r"written gives keys: \(2, 2, [04], 8\); return"),
        (
            writing(lambda k, v: Written(k, v[:, :, 1:])),
            r"written gives values: \(2, 2, [04], \d\); return \(2, 2, [15], ",
        ),
        (
            writing(lambda k, v: Written(k, v, -1.0)),
            r"a log-decay: a float; return \(2, 2, [15], 1\) or \(2, 2, [15], 8\)",
        ),
        (
            writing(lambda k, v: Written(k, v, -k[..., 0].abs())),
            r"a log-decay: \(2, 2, [15]\); return \(2, 2, [15], 1\) or",
        ),
        (writing(lambda k, v: Written(k, v, -k[..., :3].abs())), r"a log-decay: \(2, 2, [15], 3\); return"),
        (writing(lambda k, v: Written(k, v, -k[:, :1, :, :1].abs())), r"a log-decay: \(2, 1, [15], 1\); return"),
        (
            writing(lambda k, v: Written(k, v, None, k.abs()), True),
            r"a strength: \(2, 2, [15], 8\); return \(2, 2, [15], 1\), ",
        ),
        (
            writing(lambda k, v: Written(k, v, None, k[..., 0]), True),
            r"a strength: \(2, 2, [15]\); return \(2, 2, [15], 1\)",
        ),
        (writing(lambda k, v: (k, v)), r"written returned a tuple; return Written\(k, v, decay, strength\)"),
        (FewHeads, r"map_keys gives features: \(2, 1, [15], 8\); return \(2, 2, [15], features\)"),
        (FlatControl, r"control gives: \(2, [15], 32\); return \(2, 2, [15], 32\), \(batch, heads, tokens, slots\)"),
        (FewSlots, "control gives 8 numbers for a token, but there are 32 slots; give one for each of self.slots"),
    ],
)
@pytest.mark.parametrize("execution", ["reference", "scan", "loop"])
def test_features_that_do_not_fit_are_refused_in_one_line(mechanism, message, execution):
    with pytest.raises(LeapformerError, match=message) as error:
        mechanism(DIM, HEADS).double()(*inputs(COUNT, COUNT), mask=CAUSAL, execution=execution)
    assert "\n" not in str(error.value)


def test_an_option_that_was_not_declared_is_told():
    mechanism = ReLULinear(DIM, HEADS)
    with pytest.raises(
        LeapformerError, match=r"option 'scale' is read and was not declared; declared: normalizer_floor"
    ):
        mechanism.chosen.scale  # noqa: B018
    assert getattr(mechanism.chosen, "scale", 3) == 3 and not hasattr(mechanism.chosen, "scale")
    copied = pickle.loads(pickle.dumps(copy.deepcopy(mechanism.chosen)))
    assert copied == mechanism.chosen


def test_gates_that_are_not_as_many_for_each_head_are_refused():
    with pytest.raises(LeapformerError, match="begins with 3 numbers for 2 heads: give one for each head"):
        Gate(16, 2, torch.zeros(3))

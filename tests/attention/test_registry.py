"""The register, and every error a user's choice can cause: it names the value, what is allowed, and the remedy."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch

from leapformer_fairseq.attention import (
    BLOCKS,
    CAUSAL,
    MECHANISMS,
    OPTIONS,
    Capabilities,
    Context,
    LinearMechanism,
    Mechanism,
    Option,
    PrefixMask,
    TokenInfo,
    find,
    register,
    registry,
)
from leapformer_fairseq.attention.capabilities import DECODER_SELF
from leapformer_fairseq.models.length_predictors import register as register_predictor
from leapformer_fairseq.runtime.simul.policy import register as register_policy
from leapformer_fairseq.support.errors import LeapformerError

from .cases import (
    DIM,
    HEADS,
    build,
    fitted,
    inputs,
    make,
    written,
)
from .cases import OPTIONS as CASES

Relu = find("relu")
DIFFERS = (
    r"'leap_factor' of mechanism 'other' has default 8, but 4 \(and another help.*\) in .*declare it identically or r"
)


@pytest.fixture
def own_register(monkeypatch):
    """Registrations of a test that no other test sees."""
    monkeypatch.setattr(registry, "MECHANISMS", dict(MECHANISMS))
    monkeypatch.setattr(registry, "OPTIONS", dict(OPTIONS))
    return registry


@pytest.mark.parametrize("name", sorted(MECHANISMS))
@torch.no_grad()
def test_the_smallest_numbers_of_every_option_serve_or_are_refused_in_one_line(name):
    tokens, numbers = TokenInfo.whole(9), [x for x in find(name).options if type(x.default) in (int, float)]
    for option, value, block in product(numbers, (-1, 0, 1, math.nan), find(name).capabilities.blocks):
        if value != value and type(option.default) is int:
            continue  # a parser refuses it
        mask = CAUSAL if block == DECODER_SELF else None
        given = {**CASES.get(name, {}), option.name: value if value != value else type(option.default)(value)}
        q, k, v = inputs(9, 9)
        try:
            mechanism = fitted(build(name, DIM, HEADS, block=block, **given)).double()
            if mechanism.capabilities.unsupported_reason(block, mask) is None:
                out = mechanism(q, k, v, mask=mask, query=tokens, key=tokens)
                assert out.isfinite().all(), (option.flag, value, block)
        except LeapformerError as error:
            assert "\n" not in str(error) and (
                any(name in str(error) for name in (option.name, option.flag, "no packed sequence"))
            )


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_every_mechanism_describes_itself(name):
    mechanism = find(name)
    assert mechanism.name == name and mechanism.__doc__
    assert set(mechanism.capabilities.blocks) <= set(BLOCKS)
    for option in mechanism.options:
        assert OPTIONS[option.name] == option
        assert option.flag == "--" + option.name.replace("_", "-")
        assert ":" in option.help or option.name == "normalizer_floor", "the help names the mechanism"


def test_a_new_mechanism_is_found_by_name(own_register):
    @register("mean", Option("mean_width", 3, "mean: a number"))
    class Mean(Relu):
        """The average."""

    assert find("mean") is Mean
    assert build("mean", 8, 2).chosen.mean_width == 3 and build("mean", 8, 2, mean_width=5).chosen.mean_width == 5


def test_a_taken_name_is_refused(own_register):
    with pytest.raises(LeapformerError, match=r"'relu' is already registered by .*/linear/relu.py, line \d+; rename"):
        register("relu")(type("Other", (Relu,), {}))
    assert find("relu") is MECHANISMS["relu"]


def test_an_option_declared_differently_is_refused(own_register):
    with pytest.raises(LeapformerError, match=DIFFERS) as error:
        register("other", Option("leap_factor", 8, "another meaning"))(type("Other", (Relu,), {}))
    assert "other" not in own_register.MECHANISMS and "meaning" not in str(error.value)
    for more, said in (({"help": "x" * 99}, "help 'x{36}..., but 'leap"), ({"default": 4.5}, "default 4.5, but 4 in")):
        with pytest.raises(LeapformerError, match=said):
            register("other", OPTIONS["leap_factor"]._replace(**more))(type("Other", (Relu,), {}))


@pytest.mark.parametrize(
    ("base", "names", "message"),
    [
        (Mechanism, ["write", "read", "init_stat"], "has no method init_state; did you mean init_stat"),
        (Mechanism, ["write", "scan"], "no method init_state and no read; define them as in Mechanism"),
        (Mechanism, [], "no method init_state and no write and no read; define them as in Mechanism"),
        (LinearMechanism, ["map_queries"], "class Other has no method map_keys; define it as in LinearMechanism"),
        (object, [], "mechanism 'other': Other is no Mechanism; write `class Other"),
    ],
)
def test_a_class_that_lacks_something_is_refused_when_it_is_registered(own_register, base, names, message):
    with pytest.raises(LeapformerError, match=message):
        register("other")(type("Other", (base,), dict.fromkeys(names, lambda self: None)))
    assert "other" not in own_register.MECHANISMS


@pytest.mark.parametrize(
    ("constructor", "message"),
    [
        (
            lambda self, head_dim, num_heads: None,
            r"class Other does not fit \(.*keyword argument 'dropout'\); write `def",
        ),
        (
            lambda self, head_dim, num_heads, power, **options: None,
            r"missing a required argument: 'power'\); write `def __init__\(self, head_dim, num_heads, \*\*options\)`",
        ),
        (
            lambda self, **options: None,
            r"too many positional.*`super\(\).__init__\(head_dim, num_heads, \*\*options\)`",
        ),
        (lambda self, head_dim, num_heads, dropout, block, input_dim: None, "keyword argument 'other_power'"),
    ],
)
def test_a_constructor_that_does_not_take_what_it_is_given_is_refused(own_register, constructor, message):
    with pytest.raises(LeapformerError, match=f"mechanism 'other': __init__ of .*{message}"):
        register("other", Option("other_power", 2, ""))(type("Other", (Relu,), {"__init__": constructor}))
    assert "other" not in own_register.MECHANISMS


def test_options_that_a_constructor_drops_are_refused(own_register):
    @register("other", Option("other_power", 2, ""))
    class Other(Relu):
        """A constructor that hands nothing on."""

        def __init__(self, head_dim, num_heads, **options):
            super().__init__(head_dim, num_heads)

    for given in ({"other_power": 3}, {"block": "encoder-self"}):
        with pytest.raises(LeapformerError, match="class Other drops options; write `super"):
            build("other", 8, 2, **given)


@pytest.mark.parametrize(
    "name", ["my signs", "signs,leap", "leap*4", "leap:x=1", "a/b", "", "-leap", "x=1", "été", "one\n", 3]
)
def test_a_name_that_commands_cannot_read_is_refused(name):
    with pytest.raises(LeapformerError, match="commands cannot read this name; take letters, digits, - and _") as error:
        register(name)
    assert "\n" not in str(error.value)


def test_a_decorator_without_a_name_says_how_it_is_written():
    class MySigns(Relu):
        """Registered without parentheses."""

    for decorator in (register, register_policy, register_predictor):
        with pytest.raises(LeapformerError, match=r'class MySigns has no name; write @register\("my-signs"\)'):
            decorator(MySigns)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (
            lambda: Capabilities(unsupported={"decoder_cross": "why"}),
            "block 'decoder_cross' is unknown; did you mean decoder-cross.*choose from: encoder-self, decoder-self, de",
        ),
        (lambda: Capabilities(unsupported=["decoder-cross"]), 'a reason for each block, as in {"decoder-cross": "why'),
        (lambda: Capabilities(unused_projections=("q",)), "projection 'q' is unknown; choose from: q_proj, k_proj"),
        (lambda: Capabilities(unused_projections="q_proj"), r"give a tuple, as in \('q_proj',\)"),
        (lambda: Capabilities(needs_input=True), "no such field; did you mean needs_inputs"),
        (lambda: replace(Capabilities(), prefix=False), "no such field; did you mean prefixes"),
        (lambda: Capabilities(wrong=1), "no such field; choose from unsupported, prefixes"),
        (
            lambda: Option("power", 2, "", chioces=("a",)),
            r"Option\(chioces=...\): there is no such field; did you mean ch",
        ),
    ],
)
def test_a_misspelt_declaration_is_refused_with_what_there_is(declare, message):
    with pytest.raises(LeapformerError, match=message) as error:
        declare()
    assert "\n" not in str(error.value) and not str(error.value).endswith(" ")


def test_an_option_may_be_shared(own_register):
    shared = OPTIONS["normalizer_floor"]
    register("other", shared)(type("Other", (Relu,), {}))
    assert own_register.OPTIONS["normalizer_floor"] == shared


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: build("sofmax", 8, 2),
            r"unknown attention mechanism 'sofmax'; did you mean softmax\? `leapformer list` shows all",
        ),
        (
            lambda: build("leap", 8, 2, block="decoder_self"),
            "block 'decoder_self' is unknown; choose from: encoder-self",
        ),
        (lambda: find(""), "unknown attention mechanism ''; `leapformer list` shows all"),
        (lambda: build("leap", 8, 2, leap_facter=2), "'leap' has no option 'leap_facter'; its options: .*leap_factor"),
        (lambda: build("softmax", 8, 2, leap_factor=2), "'softmax' has no option 'leap_factor'; its options: none"),
        (lambda: build("leap", 8, 2, leap_factor=3), r"leap_factor 3 .*head dimension 8; choose from \[1, 2, 4, 8\]"),
        (lambda: build("leap", 8, 2, leap_factor=0), r"leap_factor 0 .*choose from"),
        (lambda: build("rope", 8, 2, rope_dims=3), "rope_dims 3 must be even and between 2 and the head dimension 8"),
        (lambda: build("rope", 8, 2, rope_dims=10), "rope_dims 10 must be even"),
        (lambda: build("cosformer", 8, 2, cosformer_length=-1), "cosformer_length -1 is negative; give a length"),
        (
            lambda: build("cosformer", 8, 2, cosformer_overrun="wrap"),
            "cosformer_overrun 'wrap': choose from: saturate, extrapolate",
        ),
        (
            lambda: build("cosformer", 8, 2, cosformer_length=9, cosformer_step=4),
            "cosformer_step 4 and cosformer_length 9: give one of them; a length of 0 is none",
        ),
        (lambda: build("cosformer", 8, 2, cosformer_step=-1), "cosformer_step -1: give at least 0"),
        (lambda: PrefixMask(0), "lagging k is 0; .*choose k >= 1"),
        (lambda: PrefixMask(1, 0), "pre-decision ratio is 0; choose at least 1"),
    ],
)
def test_errors_name_value_choices_and_remedy(call, message):
    with pytest.raises(LeapformerError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_cosformer_needs_a_length_in_the_decoder():
    without, with_length = (build("cosformer", 8, 2, cosformer_length=length) for length in (0, 9))

    def why(mechanism, block, known=False):
        return mechanism.capabilities.unsupported_reason(block, None, Context(length_known=known))

    assert why(without, "encoder-self") is None
    for block in ("decoder-self", "decoder-cross"):
        assert why(with_length, block) is None
        assert "--cosformer-length N" in (why(without, block) or "")
        assert why(without, block, known=True) is None
    rows = TokenInfo.whole(4).without_lengths()
    with pytest.raises(
        LeapformerError, match="tokens of unknown length; give cosformer_length N .say, the longest target., or"
    ):
        without(*(x.float() for x in inputs(4, 4)), query=rows, key=rows)


@pytest.mark.parametrize(
    ("overrun", "first_negative", "last_positive"), [("saturate", None, 30), ("extrapolate", 12, 19)]
)
def test_cosformer_behind_the_end_of_its_length(overrun, first_negative, last_positive):
    """The paper's weights are 0 one step behind the length, then negative, and all are from twice the length on."""
    mechanism = build("cosformer", 8, 2, cosformer_overrun=overrun, normalizer_floor=1e-9)
    q, k = torch.rand(1, 2, 30, 8) + 0.1, torch.rand(1, 2, 10, 8) + 0.1
    target = TokenInfo.whole(30).of_length(torch.tensor([10]))
    scores = mechanism.map_queries(q, target).scores(mechanism.map_keys(k, TokenInfo.whole(10))).amin(1)[0]
    steps = torch.arange(1, 31)
    negative = steps[(scores < -1e-6).any(1)].tolist()  # 0 is 1e-8 to either side
    assert (negative[0] if negative else None) == first_negative
    assert steps[(scores > 1e-6).any(1)][-1] == last_positive


def test_a_length_in_steps_is_the_next_multiple():
    """Of a target that is being written; a length that is known, as a source's is, comes first."""
    mechanism, tokens = build("cosformer", 8, 2, cosformer_step=4), TokenInfo.whole(6)
    for block in ("decoder-self", "decoder-cross"):
        assert mechanism.capabilities.unsupported_reason(block, None, Context(target_length=10**6)) is None
    x = torch.rand(1, 2, 6, 8)
    stepped, known = (mechanism.map_queries(x, one).proportion.flatten() for one in (tokens.without_lengths(), tokens))
    torch.testing.assert_close(stepped, torch.tensor([1 / 4, 2 / 4, 3 / 4, 1, 5 / 8, 6 / 8]))
    torch.testing.assert_close(known, torch.arange(1, 7) / 6)


def test_a_block_that_a_mechanism_is_not_defined_for_is_refused():
    capabilities = Capabilities(dict.fromkeys(("decoder-self", "decoder-cross"), "it looks ahead"))
    assert capabilities.unsupported_reason("encoder-self") is None
    assert capabilities.unsupported_reason("decoder-self") == "it looks ahead; allowed: encoder-self"


def test_states_of_other_mechanisms_are_refused():
    (q, k, v), rows = inputs(1, 1), TokenInfo.whole(1)
    states = {name: written(make(name), k, v, rows) for name in ("softmax", "relu", "rope")}
    for name, other in (("softmax", "relu"), ("relu", "softmax"), ("rope", "softmax")):
        with pytest.raises(TypeError, match="does not belong"):
            make(name).read(states[other], q, rows)

"""The adapter against fairseq's own attention, and its states."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest
import torch
import torch.nn.utils.parametrizations
import torch.nn.utils.prune
from fairseq.modules import MultiheadAttention

from leapformer_fairseq.attention import CAUSAL, PrefixMask, TokenInfo
from leapformer_fairseq.modules import MechanismAttention, fork_state

from ..attention.cases import CONSTANT, MECHANISMS, NAMES, OPTIONS, build, pairs, serving
from ..covering import each_with_one

T, B, C, H = 7, 3, 16, 2
CAUSAL_PLANS = serving(CAUSAL, state=True)


def adapter(name="softmax", mask=None, cross=False, **options):
    torch.manual_seed(0)
    stock = MultiheadAttention(C, H, self_attention=not cross, encoder_decoder_attention=cross)
    options = {**OPTIONS.get(name, {}), **options}
    options.pop("output_gate", None)  # values are as wide as heads, so that mechanisms have their gates
    return stock.double().eval(), MechanismAttention(stock, build(name, C // H, H, **options), mask).double().eval()


def padding(lengths, left=False, columns=T):
    columns = torch.arange(columns)
    lengths = torch.tensor(lengths).unsqueeze(1)
    return columns < T - lengths if left else columns >= lengths


@pytest.mark.parametrize("left", [False, True])
def test_softmax_equals_the_stock_module(left):
    stock, ours = adapter()
    x, mask = torch.randn(T, B, C).double(), padding([7, 5, 2], left)
    expected, weights = stock(x, x, x, key_padding_mask=mask, need_weights=True)
    out, ours_weights = ours(x, x, x, key_padding_mask=mask, need_weights=True)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(ours_weights, weights.double(), rtol=0, atol=1e-6)
    by_head = ours(x, x, x, key_padding_mask=mask, need_head_weights=True)[1]
    assert by_head.shape == (H, B, T, T)
    torch.testing.assert_close(by_head.mean(0), ours_weights)


def test_causal_softmax_equals_the_stock_module_with_a_future_mask():
    stock, ours = adapter(mask=CAUSAL)
    x = torch.randn(T, B, C).double()
    future = torch.triu(torch.full((T, T), float("-inf")), 1).double()
    expected, _ = stock(x, x, x, attn_mask=future)
    torch.testing.assert_close(ours(x, x, x, attn_mask=future)[0], expected)


@pytest.mark.parametrize("name", CAUSAL_PLANS)
def test_self_attention_steps_and_prompts_equal_the_whole(name):
    _, attention = adapter(name, CAUSAL)
    x = torch.randn(T, B, C).double()
    with torch.no_grad():
        whole, _ = attention(x, x, x)
        for cuts in ([1] * T, [4, 1, 2], [T]):
            state, parts, start = {}, [], 0
            for n in cuts:
                part = x[start : start + n]
                parts.append(attention(part, part, part, incremental_state=state)[0])
                start += n
            torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-12)


class Adapter(torch.nn.Linear):
    """As LoRA has it, a subclass with weights of its own beside those that it replaces."""

    def __init__(self, base):
        super().__init__(base.in_features, base.out_features, base.bias is not None)
        self.load_state_dict(base.state_dict())
        self.more = torch.nn.Parameter(torch.randn(base.out_features, base.in_features) / 4)

    def forward(self, x):
        return super().forward(x) + x @ self.more.T


def hooked(layer):
    layer.register_forward_hook(lambda layer, args, out: out + 0.5)
    return layer


def pruned(layer):
    torch.nn.utils.prune.random_unstructured(layer, "weight", 0.5)
    return layer


def normed(layer):
    if not layer.weight.any():  # such as a gate that begins open, whose direction would be 0 / 0
        torch.nn.init.normal_(layer.weight)
    return torch.nn.utils.parametrizations.weight_norm(layer)


def replace_layers(attention, change):
    """Change each Linear of a block and its mechanism; returns how many there are."""
    found = [
        (parent, name, layer)
        for parent in list(attention.modules())
        for name, layer in list(parent.named_children())
        if type(layer) is torch.nn.Linear
    ]
    for parent, name, layer in found:
        setattr(parent, name, change(layer).to(layer.weight.dtype))
    attention.mechanism.receive(attention._projections())
    return len(found)


@pytest.mark.parametrize(("name", "change"), each_with_one(CAUSAL_PLANS, [Adapter, hooked, pruned, normed]))
@torch.no_grad()
def test_layers_that_are_more_than_their_weights_are_called(name, change):
    """In steps as in one pass: a fused step takes the weights alone."""
    _, attention = adapter(name, CAUSAL)
    x = torch.randn(T, B, C).double()
    before, _ = attention(x, x, x)
    assert replace_layers(attention, change) >= 4
    whole, _ = attention(x, x, x)
    assert change is normed or (whole - before).abs().max() > 1e-3
    state: dict = {}
    parts = [attention(part, part, part, incremental_state=state)[0] for part in x.split(1)]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", CAUSAL_PLANS)
@pytest.mark.parametrize("change", [Adapter, hooked])
@torch.no_grad()
def test_each_layer_of_a_mechanism_is_called(name, change):
    """Alone, so that no other one hides it."""
    _, attention = adapter(name, CAUSAL)
    inner = [one for one, layer in attention.mechanism.named_modules() if type(layer) is torch.nn.Linear]
    for one in inner:
        _, attention = adapter(name, CAUSAL)
        x = torch.randn(T, B, C).double()
        before, _ = attention(x, x, x)
        parent = attention.mechanism.get_submodule(one.rpartition(".")[0])
        setattr(parent, one.rpartition(".")[2], change(attention.mechanism.get_submodule(one)).double())
        whole, _ = attention(x, x, x)
        assert (whole - before).abs().max() > 1e-4, one
        state: dict = {}
        parts = [attention(part, part, part, incremental_state=state)[0] for part in x.split(1)]
        torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["softmax", "leap", "abc-mlp", "gated-delta", "simple-gla", "luna"])
@torch.no_grad()
def test_layers_in_8_bits(name):
    _, attention = adapter(name, CAUSAL)
    quantised = torch.ao.quantization.quantize_dynamic(attention.float(), {torch.nn.Linear}, torch.qint8)
    x = torch.randn(T, B, C)
    whole, state = quantised(x, x, x)[0], {}
    parts = [quantised(part, part, part, incremental_state=state)[0] for part in x.split(1)]
    # What weights are multiplied by is rounded by the largest number of each call.
    assert (torch.cat(parts) - whole).abs().max() < 0.1 * whole.abs().max()


@pytest.mark.parametrize("name", CAUSAL_PLANS)
def test_padded_steps_leave_no_trace(name):
    """A finished hypothesis is fed padding; what it and others say next must not change."""
    _, attention = adapter(name, CAUSAL)
    x = torch.randn(4, B, C).double()
    pad = torch.tensor([[False], [True], [False]])
    with torch.no_grad():
        plain, padded = {}, {}
        for state in (plain, padded):
            attention(x[:1], x[:1], x[:1], incremental_state=state)
        attention(x[1:2], x[1:2], x[1:2], key_padding_mask=pad, incremental_state=padded)
        expected = attention(x[3:], x[3:], x[3:], incremental_state=plain)[0]
        out = attention(x[3:], x[3:], x[3:], incremental_state=padded)[0]
    torch.testing.assert_close(out[:, 1], expected[:, 1])
    assert torch.isfinite(out).all()


CROSS = [name for name in NAMES if "decoder-cross" in MECHANISMS[name].capabilities.blocks]
CROSS = [name for name in CROSS if MECHANISMS[name].capabilities.incremental]


@pytest.mark.parametrize(("name", "visible"), pairs(CROSS, (None, PrefixMask(2, 3))))
def test_cross_attention_steps_equal_the_whole(name, visible):
    _, attention = adapter(name, visible, cross=True)
    source, target, mask = (
        torch.randn(20, B, C).double(),
        torch.randn(T, B, C).double(),
        padding([20, 15, 9], columns=20),
    )
    with torch.no_grad():
        whole, weights = attention(
            target, source, source, key_padding_mask=mask, static_kv=True, need_head_weights=True
        )
        state, parts, maps = {}, [], []
        for part in target.split([1, 1, 3, 2]):
            out, step_weights = attention(
                part,
                source,
                source,
                key_padding_mask=mask,
                static_kv=True,
                incremental_state=state,
                need_head_weights=True,
            )
            parts.append(out)
            maps.append(step_weights)
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.cat(maps, 2), weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])
def test_a_control_reads_what_the_keys_are_projected_from(cross):
    """The layer's input, or the encoder's output, which may be of another width."""
    width = 10 if cross else C
    stock = MultiheadAttention(C, H, kdim=width, vdim=width, self_attention=not cross, encoder_decoder_attention=cross)
    mechanism = build("abc-mlp", C // H, H, abc_slots=3, input_dim=width)
    attention = MechanismAttention(stock, mechanism, None if cross else CAUSAL).double().eval()
    x, source = torch.randn(T, B, C).double(), torch.randn(9, B, width).double()
    key = source if cross else x
    with torch.no_grad():
        out, _ = attention(x, key, key)
        rows = replace(TokenInfo.whole(len(key)), inputs=key.transpose(0, 1))
        q, (k, v) = attention.project_queries(x, rows), attention.project_keys(key, rows)
        expected = attention.project_out(
            mechanism(q, k, v, key=rows, mask=None if cross else CAUSAL, execution="reference")
        )
        other = attention.project_out(mechanism(q, k, v, key=replace(rows, inputs=rows.inputs.flip(0)), mask=None))
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    assert (other - expected).abs().max() > 1e-3


@pytest.mark.parametrize("name", CAUSAL_PLANS)
def test_states_follow_reordering_to_a_smaller_batch(name):
    _, attention = adapter(name, CAUSAL)
    x, order = torch.randn(5, B, C).double(), torch.tensor([2, 0])
    with torch.no_grad():
        state, expected = {}, {}
        for t in range(4):
            attention(x[t : t + 1], x[t : t + 1], x[t : t + 1], incremental_state=state)
        attention.reorder_incremental_state(state, order)
        out, _ = attention(x[4:, :2], x[4:, :2], x[4:, :2], incremental_state=state)
        mixed = torch.cat([x[:4, order], x[4:, :2]])
        expected, _ = attention(mixed, mixed, mixed)
    torch.testing.assert_close(out[0], expected[-1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", CAUSAL_PLANS)
def test_a_fork_is_independent(name):
    _, attention = adapter(name, CAUSAL)
    x = torch.randn(3, B, C).double()

    def step(t, state):
        return attention(x[t : t + 1], x[t : t + 1], x[t : t + 1], incremental_state=state)[0]

    with torch.no_grad():
        state = {}
        step(0, state)
        fork = fork_state(state)
        expected = step(1, state)
        step(2, state)
        torch.testing.assert_close(step(1, fork), expected)


@pytest.mark.parametrize("name", serving(CAUSAL, CONSTANT))
def test_linear_states_do_not_grow(name):
    _, attention = adapter(name, CAUSAL)
    state, sizes = {}, []
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(1, B, C).double()
            attention(x, x, x, incremental_state=state)
            sizes.append(state[attention.slot].state.nbytes())
    assert len(set(sizes)) == 1


def test_half_precision_keeps_its_sums_in_float32():
    _, attention = adapter("leap", CAUSAL)
    attention = attention.bfloat16()
    state = {}
    with torch.no_grad():
        x = torch.randn(1, B, C).bfloat16()
        out, _ = attention(x, x, x, incremental_state=state)
    assert out.dtype == torch.bfloat16
    assert state[attention.slot].state.kv.dtype == torch.float32


def stepped(attention, x):
    """Self-attention row by row."""
    state = {}
    with torch.no_grad():
        return torch.cat([attention(row, row, row, incremental_state=state)[0] for row in x.split(1)])


def changed(attention, x, how):
    """Other weights: written to where PyTorch notices, or as fairseq's optimizers do it between two generations."""
    if how == "a pass with gradients":
        attention(x, x, x)
    for parameter in attention.parameters():
        change = 0.1 * torch.randn_like(parameter)
        if how == "a new version":
            with torch.no_grad():
                parameter.add_(change)
        else:
            parameter.data.add_(change)
    if how == "another mode":
        attention.eval()


@pytest.mark.parametrize("how", ["a new version", "a pass with gradients", "another mode"])
@pytest.mark.parametrize("name", CAUSAL_PLANS)
def test_a_changed_weight_is_seen_by_the_next_generation(name, how):
    _, attention = adapter(name, CAUSAL)
    x = torch.randn(3, B, C).double()
    before = stepped(attention, x)
    changed(attention, x, how)
    with torch.no_grad():
        whole, _ = attention(x, x, x)
    after = stepped(attention, x)
    torch.testing.assert_close(after, whole, rtol=0, atol=1e-12)
    assert (after - before).abs().max() > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", CAUSAL_PLANS)
def test_steps_under_autocast_are_as_near_as_the_whole(name, dtype):
    _, attention = adapter(name, CAUSAL)
    x = torch.randn(T, B, C).to(dtype)
    with torch.no_grad():
        exact, _ = attention(*[x.double()] * 3)
        attention = attention.to(dtype)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            whole, _ = attention(x, x, x)
            steps = stepped(attention, x)
    error, allowed = ((out.double() - exact).abs().max() for out in (steps, whole))
    assert error <= 2 * allowed + 1e-3


@pytest.mark.parametrize("name", CAUSAL_PLANS)
def test_a_module_that_has_generated_can_be_copied_and_pickled(name):
    _, attention = adapter(name, CAUSAL)
    x = torch.randn(3, B, C).double()
    expected = stepped(attention, x)
    for copied in (copy.deepcopy(attention), pickle.loads(pickle.dumps(attention))):
        torch.testing.assert_close(stepped(copied, x), expected)


def test_decoding_with_gradients_takes_the_general_way():
    _, attention = adapter("leap", CAUSAL)
    x, state = torch.randn(3, B, C).double(), {}
    out = torch.cat([attention(row, row, row, incremental_state=state)[0] for row in x.split(1)])
    out.sum().backward()
    assert attention.q_proj.weight.grad is not None
    torch.testing.assert_close(out.detach(), stepped(attention, x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", CAUSAL_PLANS)
@torch.no_grad()
def test_all_but_the_first_token_take_the_short_way(name, monkeypatch):
    taken = []
    for way in ("self_step", "cross_step"):
        real = getattr(MechanismAttention, way)
        monkeypatch.setattr(
            MechanismAttention, way, lambda *args, real=real, way=way: (taken.append(way), real(*args))[1]
        )
    own, cross = adapter(name, CAUSAL)[1], adapter("softmax", cross=True)[1]
    own, cross, state = own.float(), cross.float(), {}
    source = torch.randn(4, B, C)
    for x in torch.randn(T, 1, B, C):
        own(x, x, x, incremental_state=state, need_weights=False)
        cross(x, source, source, incremental_state=state, static_kv=True, need_weights=False)
    assert taken == ["self_step", "cross_step"]


@torch.no_grad()
def test_a_source_that_grows_is_written_before_it_is_read():
    cross = adapter(cross=True)[1]
    x, source, state = torch.randn(3, B, C).double(), torch.randn(6, B, C).double(), {}
    for i, read in enumerate((2, 2, 6)):
        seen = source[:read]
        out, _ = cross(x[i : i + 1], seen, seen, incremental_state=state, static_kv=True, need_weights=False)
        torch.testing.assert_close(out, cross(x[i : i + 1], seen, seen, need_weights=False)[0])

"""Streaming encoders: however the audio is cut, they give what they give for the whole utterance."""

from __future__ import annotations

import pytest
import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from hypothesis import given, settings
from hypothesis import strategies as st

from leapformer_fairseq.attention import MECHANISMS, ChunkMask, build, sinusoids
from leapformer_fairseq.models.streaming_encoder import ArrivingSource
from leapformer_fairseq.support.errors import LeapformerError

from ..covering import covering, each_with_one
from .tiny import SIZES, VARIANTS, make_model, speech_batch, target_prefix

KINDS = {
    "causal": {"encoder_causal": True},
    "chunks": {"encoder_chunk_ms": 160},
    "ahead": {"encoder_chunk_ms": 120, "encoder_right_context_ms": 80},
    "past": {"encoder_chunk_ms": 80, "encoder_right_context_ms": 40, "encoder_past_ms": 120},
}
# as encoder-self attention, which has options of its own here
PLANS = sorted(
    name
    for name, mechanism in MECHANISMS.items()
    if build(name, 8, 2, block="encoder-self", **{o.name: SIZES.get(o.name, o.default) for o in mechanism.options})
    .capabilities.unsupported_reason("encoder-self", ChunkMask(2)) is None
)  # fmt: skip
PLANS += VARIANTS


def s2t(plan="leap", kind="chunks", **options):
    return make_model("leapformer_s2t_tiny", "softmax", encoder_self_attention=plan, **KINDS[kind], **options)


def arriving(encoder, frames, cuts):
    source, states = ArrivingSource(), []
    for i, part in enumerate(frames.split(cuts)):
        states.append(encoder.extend(source, part, final=i == len(cuts) - 1))
    return torch.cat(states), source


def whole(encoder, frames):
    return encoder(frames.unsqueeze(0), torch.tensor([len(frames)]))["encoder_out"][0]


@covering(None, str, plan=PLANS, kind=tuple(KINDS), cuts=[[61], [1] * 61, [7, 20, 0, 3, 31], [60, 1], [3, 58]])
@torch.no_grad()
def test_arriving_speech_gives_the_states_of_the_whole(plan, kind, cuts):
    encoder, frames = s2t(plan, kind).encoder, torch.randn(61, 8).double()
    got, _ = arriving(encoder, frames, cuts)
    torch.testing.assert_close(got, whole(encoder, frames), rtol=0, atol=1e-10)


@settings(deadline=None, max_examples=40)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    plan=st.sampled_from(["leap", "softmax", "rope"]),
    cuts=st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(any),
)
@torch.no_grad()
def test_any_cutting_gives_the_same(kind, plan, cuts):
    encoder, frames = s2t(plan, kind).encoder, torch.randn(sum(cuts), 8).double()
    got, _ = arriving(encoder, frames, cuts)
    torch.testing.assert_close(got, whole(encoder, frames), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("plan", "kind"), each_with_one(PLANS, tuple(KINDS)))
@torch.no_grad()
def test_an_utterance_is_encoded_the_same_alone_and_in_a_batch(plan, kind):
    encoder, batch = s2t(plan, kind).encoder, speech_batch()
    together = encoder(**batch)["encoder_out"][0]
    for i, length in enumerate(batch["src_lengths"].tolist()):
        alone = whole(encoder, batch["src_tokens"][i, :length])
        torch.testing.assert_close(together[: len(alone), i : i + 1], alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("kind", "size", "ahead"), [("causal", 1, 0), ("chunks", 4, 0), ("ahead", 3, 2)])
@torch.no_grad()
def test_a_state_sees_its_chunk_and_what_is_ahead_of_it(kind, size, ahead):
    """With two layers: what is ahead of a chunk is read with it, and does not let it see further layer by layer."""
    encoder, frames = s2t("leap", kind).encoder, torch.randn(80, 8).double()
    before = whole(encoder, frames)
    for row in range(20):
        changed_frames = frames.clone()
        changed_frames[4 * row : 4 * row + 4] = 5 * torch.randn(4, 8)  # what makes this row and no earlier one
        changed = (whole(encoder, changed_frames) - before).abs().amax((1, 2)) > 1e-9
        first = int(changed.int().argmax())
        starts = torch.arange(20) // size * size
        assert first == int(((starts + size + ahead) > row).int().argmax())


@pytest.mark.parametrize("width", [16, 17])
def test_positions_beyond_the_table_are_those_of_a_longer_one(width):
    table = SinusoidalPositionalEmbedding.get_embedding(20_000, width, padding_idx=1)
    torch.testing.assert_close(sinusoids(torch.arange(9000, 20_000), width), table[9000:])


@torch.no_grad()
def test_what_is_kept_does_not_grow_with_the_audio():
    for plan in ("leap", "softmax"):
        encoder, source, sizes = s2t(plan, "past").encoder, ArrivingSource(), set()
        for _ in range(12):
            encoder.extend(source, torch.randn(40, 8).double())
            held = sum(state.nbytes() for state in source.states.values())
            sizes.add((held, len(source.frames), len(source.waiting)))
        assert len(sizes) == 1, plan


@torch.no_grad()
def test_a_fork_goes_on_by_itself():
    encoder, frames = s2t("leap", "ahead").encoder, torch.randn(61, 8).double()
    source = ArrivingSource()
    first = encoder.extend(source, frames[:30])
    fork = source.fork()
    encoder.extend(fork, torch.randn(25, 8).double())
    rest = encoder.extend(source, frames[30:], final=True)
    torch.testing.assert_close(torch.cat([first, rest]), whole(encoder, frames), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_training_reaches_every_parameter(kind):
    model = s2t("leap", kind).train()
    out, _ = model(**speech_batch(), prev_output_tokens=target_prefix(3, 5))
    out.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.encoder.parameters())


@torch.no_grad()
def test_positions_go_on_beyond_the_table():
    encoder = s2t("leap", "chunks", max_source_positions=10).encoder
    encoder.embed_positions.weights = encoder.embed_positions.weights[:12]
    frames = torch.randn(400, 8).double()
    got, _ = arriving(encoder, frames, [100] * 4)
    torch.testing.assert_close(got, whole(encoder, frames), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder_chunk_ms": 100}, "--encoder-chunk-ms 100: give a multiple of 40"),
        ({"encoder_chunk_ms": -40}, "--encoder-chunk-ms -40: give a multiple of 40"),
        ({"encoder_right_context_ms": 40}, "belong to an encoder in chunks; give --encoder-chunk-ms, too"),
        ({"encoder_causal": True, "encoder_chunk_ms": 80}, "--encoder-causal has neither chunks nor look-ahead"),
        (
            {"encoder_causal": True, "encoder_self_attention": "cosformer"},
            "encoder-self attention, layer 1: cosformer cannot be used: it depends on the whole sequence",
        ),
        ({"encoder_chunk_ms": 80, "encoder_self_attention": "leap,luna"}, "layer 2: luna cannot be used: it depends"),
    ],
)
def test_what_cannot_be_streamed_is_refused(options, message):
    with pytest.raises(LeapformerError, match=message):
        make_model("leapformer_s2t_tiny", "leap", **options)


def test_an_encoder_of_whole_utterances_cannot_be_extended():
    with pytest.raises(LeapformerError, match="train with --encoder-causal or --encoder-chunk-ms"):
        make_model("leapformer_s2t_tiny").encoder.extend(ArrivingSource(), torch.randn(9, 8).double())

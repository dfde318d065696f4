"""Wait-k in the model: what a token may see, where a sentence may end, sampling of k, and bad values."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from leapformer_fairseq.models.simulst import WaitKDecoder, parse_lagging
from leapformer_fairseq.models.transformer import Decoder
from leapformer_fairseq.modules import attentions
from leapformer_fairseq.runtime.simul.stream import DecodingOptions, TranslationStream
from leapformer_fairseq.simul.system import TranslationSystem
from leapformer_fairseq.support.errors import LeapformerError

from ..covering import each_with_one, shared_out
from ..scripted import policy_of
from .tiny import PLANS, VARIANTS, dictionary, make_model, speech_batch, target_prefix


def simulst(plan="leap", lagging="2", ratio=3, **options):
    return make_model("leapformer_simulst_tiny", plan, waitk_lagging=lagging, fixed_pre_decision_ratio=ratio, **options)


def first_affected_token(model, frame: int, tokens: int = 10) -> int:
    """The first target position whose logits change when encoder state `frame` changes (the decoder alone)."""
    batch, prefix = speech_batch((80,)), target_prefix(1, tokens)
    with torch.no_grad():
        encoder_out = model.encoder(**batch)
        before, _ = model.decoder(prefix, encoder_out=encoder_out)
        encoder_out["encoder_out"][0][frame] += 1.0
        after, _ = model.decoder(prefix, encoder_out=encoder_out)
    changed = (before - after).abs().amax(-1)[0] > 1e-9
    return int(changed.float().argmax()) if bool(changed.any()) else tokens


@pytest.mark.parametrize(
    ("plan", "k", "ratio"), each_with_one(shared_out([*PLANS, *VARIANTS], 0), [(1, 1), (1, 3), (3, 2), (2, 7)])
)
def test_a_token_sees_exactly_its_prefix(plan, k, ratio):
    model = simulst(plan, str(k), ratio)
    for frame in (0, 1, 2, 3, 5, 6, 7, 13, 14, 19):
        # g(t) = ratio (t + k) > frame, the smallest such t
        expected = max(0, frame // ratio + 1 - k)
        assert first_affected_token(model, frame) == min(expected, 10)


def test_the_check_notices_a_leak():
    """Inverted control: one decision too many is seen one token too early."""
    model = simulst("leap", "2", 3)
    model.set_lagging(3)
    assert first_affected_token(model, 12) != max(0, 12 // 3 + 1 - 2)


def test_a_range_is_sampled_in_training_and_fixed_in_evaluation():
    model, batch, prefix = simulst(lagging="2-5"), speech_batch(), target_prefix(3, 4)
    cross = [a for a in attentions(model) if a.encoder_decoder_attention]
    assert {a.mask.lagging for a in cross} == {5}
    model.train()
    seen = set()
    for _ in range(40):
        model(**batch, prev_output_tokens=prefix)
        assert len({a.mask for a in cross}) == 1
        seen.add(cross[0].mask.lagging)
    assert seen == {2, 3, 4, 5}
    model.eval()
    assert {a.mask.lagging for a in cross} == {5}


def draw_only(model, monkeypatch, lagging):
    """Let training draw this k, None for no limit."""
    place = model.laggings.index(lagging)
    monkeypatch.setattr(torch, "randint", lambda high, size: torch.tensor(place))


def test_whole_sources_are_among_what_training_draws():
    """Uniformly: 200 draws of three hold each 67 times on average, with a standard deviation of 7."""
    model, batch, prefix = simulst(lagging="2-3,offline"), speech_batch(), target_prefix(3, 4)
    cross = next(a for a in attentions(model) if a.encoder_decoder_attention)
    model.train()
    seen = []
    for _ in range(200):
        model(**batch, prev_output_tokens=prefix)
        seen.append(None if cross.mask is None else cross.mask.lagging)
        assert model.decoder.mask == cross.mask
    assert all(40 < seen.count(lagging) < 94 for lagging in (2, 3, None))
    model.eval()
    assert cross.mask.lagging == model.lagging == 3, "the largest k there is"


@pytest.mark.parametrize("plan", ["leap", "softmax"])
@pytest.mark.parametrize(("drawn", "alone"), [(None, "offline"), (1, "1")])
def test_what_is_drawn_trains_as_a_model_of_that_alone(plan, drawn, alone, monkeypatch):
    options = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    both, one = simulst(plan, "1-2,offline", **options).train(), simulst(plan, alone, **options).train()
    batch, prefix = speech_batch(), target_prefix(3, 6)
    with monkeypatch.context() as patch:
        draw_only(both, patch, drawn)
        losses = [model(**batch, prev_output_tokens=prefix)[0].log_softmax(-1)[..., 7].sum() for model in (both, one)]
        for loss in losses:
            loss.backward()
        assert losses[0] == losses[1]
        for mine, other in zip(both.parameters(), one.parameters(), strict=True):
            assert mine.grad is other.grad is None or torch.equal(mine.grad, other.grad)
        draw_only(both, patch, 2)
        assert both(**batch, prev_output_tokens=prefix)[0].log_softmax(-1)[..., 7].sum() != losses[1]


def test_k_large_enough_is_offline():
    batch, prefix = speech_batch(), target_prefix(3, 6)
    with torch.no_grad():
        wide, _ = simulst(lagging="20")(**batch, prev_output_tokens=prefix)
        offline, _ = simulst(lagging="offline")(**batch, prev_output_tokens=prefix)
    torch.testing.assert_close(wide, offline, rtol=0, atol=1e-12)


@pytest.mark.parametrize("text", ["0", "-1", "3-2", "0-4", "x", "2.5", "", "1-9,", "1-9,0", "offline,x"])
def test_bad_lagging_is_refused(text):
    with pytest.raises(LeapformerError, match=r"--waitk-lagging .*give k >= 1"):
        parse_lagging(text)


@pytest.mark.parametrize(
    ("text", "laggings"),
    [("5", [5]), ("1-4", [1, 2, 3, 4]), ("offline", [None]), (3, [3]), ("2-3,offline", [2, 3, None])],
)
def test_lagging_is_read(text, laggings):
    assert parse_lagging(text) == laggings


def test_bad_ratio_is_refused():
    with pytest.raises(LeapformerError, match="pre-decision ratio is 0"):
        simulst(ratio=0)


# ------------------------------------------------------------------------------------- generation as the agent writes
PAD, EOS, RATIO = 1, 2, 4
LENGTHS = (131, 16, 97, 3, 64, 40)  # frames; with 4 rows a step 9, 1, 7, 1, 4 and 3 steps
ARRIVING = {
    "causal": {"encoder_causal": True},
    "chunk": {"encoder_chunk_ms": 80},
    "right context": {"encoder_chunk_ms": 120, "encoder_right_context_ms": 80},
}


def waiting(plan="leap", k=2, arriving="causal", ends=8):
    """A model that likes to end its sentences everywhere."""
    options = {**ARRIVING[arriving], "waitk_lagging": str(k), "fixed_pre_decision_ratio": RATIO}
    model = make_model("leapformer_simulst_tiny", plan, encoder_self_attention="leap", **options)
    with torch.no_grad():
        model.decoder.output_projection.weight[EOS] *= ends
    return model


class Frames:
    """The steps of a FeatureStream, of frames that are known."""

    def __init__(self, frames, step):
        self.steps = list(frames.split(step))

    def next_step(self, final):
        return self.steps.pop(0) if self.steps else None


class Pieces:
    def piece(self, token):
        return ""

    def __len__(self):
        return 100


def written(model, batch, k, limit, policy="wait-k", beam=1):
    """What the agent writes for each utterance."""
    model.set_lagging(None)
    tokens = []
    for frames, length in zip(batch["src_tokens"], batch["src_lengths"], strict=True):
        system = TranslationSystem(model, EOS, (PAD,), Pieces(), None, policy_of(policy, k=k), 4 * RATIO)
        stream = TranslationStream(system, DecodingOptions(max_len_b=limit, beam=beam))
        stream.features = Frames(frames[:length], 4 * RATIO)
        assert stream.advance(source_finished=True)
        tokens.append(stream.engine._tokens[1:])
    model.set_lagging(k)
    return tokens


def generated(model, batch, limit=12, beam=1):
    """The hypotheses of fairseq's generator, each without its end."""
    generator = SequenceGenerator([model], dictionary(), beam_size=beam, max_len_b=limit, min_len=0)
    hypotheses = generator.generate([model], {"net_input": batch})
    return [[one["tokens"].tolist()[:-1] for one in sentence] for sentence in hypotheses]


def check_same(model, batch, k, limit=12):
    if [best[0] for best in generated(model, batch, limit)] != written(model, batch, k, limit):
        raise AssertionError("not what the agent writes")


@pytest.mark.parametrize(("plan", "k"), each_with_one(shared_out([*PLANS, *VARIANTS], 1), [1, 3]))
def test_generation_writes_what_the_agent_writes(plan, k):
    for arriving in ARRIVING if plan in ("leap", "softmax") else ["causal"]:
        check_same(waiting(plan, k, arriving), speech_batch(LENGTHS), k)


def test_the_beam_of_the_offline_policy_is_that_of_generate():
    model, batch = waiting(ends=1.5), speech_batch(LENGTHS)
    model.set_lagging(None)
    expected, greedy = ([best[0] for best in generated(model, batch, beam=beam)] for beam in (4, 1))
    assert written(model, batch, None, 12, "offline", beam=4) == expected != greedy


@pytest.mark.parametrize("limit", [1, 3, 5])
def test_a_length_limit_that_cuts_the_schedule(limit):
    model, batch = waiting(k=1), speech_batch(LENGTHS)
    assert max(len(best[0]) for best in generated(model, batch, limit)) == limit
    check_same(model, batch, 1, limit)


def test_the_check_notices_an_end_that_is_open(monkeypatch):
    """Inverted control: the decoder as it was without the schedule."""
    monkeypatch.setattr(WaitKDecoder, "forward", Decoder.forward)
    with pytest.raises(AssertionError, match="not what the agent writes"):
        check_same(waiting(k=1), speech_batch(LENGTHS), 1)


def test_no_hypothesis_of_a_beam_ends_before_the_source():
    k, batch = 2, speech_batch(LENGTHS)
    hypotheses = generated(waiting(k=k), batch, beam=4)
    for sentence, frames in zip(hypotheses, LENGTHS, strict=True):
        steps = -(-frames // (4 * RATIO))
        assert len(sentence) == 4
        assert min(map(len, sentence)) >= steps - k + 1


@pytest.mark.parametrize(
    ("k", "state", "open_"), [(1, None, True), (None, {}, True), (9, {}, True), (1, {}, False)],
    ids=["scoring", "offline", "k beyond the source", "generation"],
)  # fmt: skip
def test_only_generation_under_wait_k_closes_the_end(k, state, open_):
    model, batch = waiting(k=1), speech_batch((100, 80))
    model.set_lagging(k)
    with torch.no_grad():
        output = model.decoder(target_prefix(2, 1), encoder_out=model.encoder(**batch), incremental_state=state)
    scores, probabilities = (model.get_normalized_probs(output, log_probs)[:, 0] for log_probs in (True, False))
    if open_:
        torch.testing.assert_close(scores, output[0][:, 0].float().log_softmax(-1))
        torch.testing.assert_close(probabilities, scores.exp())
    else:
        assert (scores.argmin(1) == EOS).all() and scores.isfinite().all()
        assert probabilities[:, EOS].eq(0).all() and probabilities[:, EOS + 1 :].ne(0).all()


def test_the_ratio_can_be_another_than_that_of_training():
    model = waiting()
    model.set_lagging(3, 7)
    cross = [one.mask for one in attentions(model.decoder) if one.encoder_decoder_attention]
    assert {(one.lagging, one.ratio) for one in cross} == {(3, 7)} and model.decoder.mask == cross[0]


def test_an_oracle_tells_cosformer_the_length_in_training_alone():
    """Table 5 of the LeaPformer paper: cosFormer in decoder self-attention under wait-k, with true lengths."""
    plan = {"decoder_self_attention": "cosformer", "cosformer_length": 0}
    model = simulst("softmax", length_predictor="oracle", **plan)
    batch, prefix = speech_batch(), target_prefix(3, 7)
    short, _ = model(**batch, prev_output_tokens=prefix)
    padded = torch.cat([prefix, prefix.new_full((3, 2), 1)], 1)
    torch.testing.assert_close(model(**batch, prev_output_tokens=padded)[0][:, :7], short)
    longer = torch.cat([prefix, prefix[:, 1:3]], 1)
    assert (model(**batch, prev_output_tokens=longer)[0][:, :7] - short).abs().max() > 1e-6
    # The agent has no references: lengths in steps (figure 4), or none.
    for step, outcome in ((0, pytest.raises(LeapformerError, match="received no target length")), (4, nullcontext())):
        stepping = simulst("softmax", length_predictor="oracle", cosformer_step=step, **plan)
        torch.testing.assert_close(stepping(**batch, prev_output_tokens=prefix)[0], short)
        with outcome, torch.no_grad():
            stepping.decoder(prefix[:, :1], encoder_out=stepping.encoder(**batch), incremental_state={})
    with pytest.raises(LeapformerError, match="--length-predictor ratio: it needs the whole source, .*oracle"):
        simulst("softmax", length_predictor="ratio", **plan)

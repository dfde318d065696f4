"""The classifier: sizes of the papers, padding, pooling, two sequences, and what is refused."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY

from leapformer_fairseq.attention import MECHANISMS
from leapformer_fairseq.data.arrays import About
from leapformer_fairseq.data.lra.prepare import TASKS
from leapformer_fairseq.models.classifier import LRA_POSITIONS, LeapformerClassifier
from leapformer_fairseq.support.errors import LeapformerError

SERVING = sorted(
    name
    for name, mechanism in MECHANISMS.items()
    if "encoder-self" in mechanism.capabilities.blocks and not mechanism.capabilities.missing
)
ABOUT = About(12, 3)


def build(plan="softmax", arch="leapformer_classifier", about=ABOUT, **options):
    torch.manual_seed(0)
    args = Namespace(encoder_self_attention=plan, **options)
    ARCH_CONFIG_REGISTRY[arch](args)
    return LeapformerClassifier.build_model(args, SimpleNamespace(about=about)).eval()


def batch(*lengths, width=None):
    torch.manual_seed(1)
    found = torch.zeros(len(lengths), width or max(lengths), dtype=torch.long)
    for row, length in zip(found, lengths, strict=True):
        row[:length] = torch.randint(1, 11, (length,))
    return found


@pytest.mark.parametrize(
    ("task", "total", "without_embeddings"),
    [
        ("listops", 209_802, 76_682),
        ("text", 370_562, 75_650),
        ("retrieval", 395_138, 100_226),
        ("pathfinder", 173_954, 75_650),
        ("image", 158_602, 76_682),
    ],
)
def test_parameters_of_the_leapformer_paper(task, total, without_embeddings):
    """And 4,356 more of the proportion networks with 32 hidden units, 132 with one."""
    about = TASKS[task].about(["black-is-padding"])

    def count(plan, **options):
        model = build(plan, f"leapformer_classifier_lra_{task}", about, **options)
        sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
        return sum(sizes.values()), sum(size for name, size in sizes.items() if "embed" not in name)

    assert count("softmax") == (total, without_embeddings)
    assert count("leap", leap_factor=1)[0] - total == 4356
    assert count("leap", leap_factor=32)[0] - total == 132
    assert set(LRA_POSITIONS) == set(TASKS)


@pytest.mark.parametrize("plan", SERVING)
def test_an_example_does_not_depend_on_its_batch(plan):
    """Nor on padding, with either pooling and odd lengths."""
    for pooling in ("cls", "mean", *(["packed"] if plan == "luna" else [])):
        model = build(plan, pooling=pooling, max_positions=64)
        tokens = batch(13, 7, 1)
        together = model([tokens])
        wider = model([batch(13, 7, 1, width=31)])
        alone = torch.cat([model([tokens[i : i + 1, :length]]) for i, length in enumerate((13, 7, 1))])
        assert torch.allclose(together, alone, atol=2e-5) and torch.allclose(together, wider, atol=2e-5)


@pytest.mark.parametrize("plan", ["softmax", "leap", "luna"])
def test_every_token_counts(plan):
    """And 0 is nothing else than padding: a number in its place changes the scores."""
    for pooling in ("cls", "mean", *(["packed"] if plan == "luna" else [])):
        model = build(plan, pooling=pooling, max_positions=64)
        tokens = batch(9, 5)
        scores = model([tokens])
        for place in ((0, 0), (0, 8), (1, 4), (1, 5)):
            other = tokens.clone()
            other[place] = tokens[place] % 10 + 1
            changed = (model([other]) - scores).abs().amax(1) > 0
            assert changed.tolist() == [place[0] == 0, place[0] == 1]


def test_the_mark_and_what_it_pushes_out():
    """With the papers' table of 1,024 positions the mark costs the last pixel; a longer table keeps it."""
    tokens = batch(8)
    other = tokens.clone()
    other[0, -1] = tokens[0, -1] % 10 + 1
    short, long = (build(max_positions=size) for size in (8, 9))
    assert torch.equal(short([tokens]), short([other]))
    assert not torch.equal(long([tokens]), long([other]))
    assert short.mark == 11


def test_two_sequences():
    """[a, b, a b, a - b] of one encoder."""
    model = build(about=About(12, 2, 2))
    a, b = batch(5, 3), batch(4, 6)
    seen = []
    model.classifier.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    assert model([a, b]).shape == (2, 2)
    one, other = model.pooled(a), model.pooled(b)
    assert torch.allclose(seen[0], torch.cat([one, other, one * other, one - other], 1))
    with pytest.raises(LeapformerError, match="1 sequences per example, but the model was built for 2"):
        model([a])
    released = build(about=About(12, 2, 2), pairs="concatenated", classifier_width=10)
    shapes = [tuple(layer.weight.shape) for layer in released.classifier if isinstance(layer, torch.nn.Linear)]
    assert shapes == [(10, 128), (5, 10), (2, 5)], "[a, b] and a layer more"
    wide, few = (released.classifier[0](torch.cat([released.pooled(x) for x in (a, b)], 1)), released([a, b]))
    assert torch.allclose(released.classifier[1:](wide), few, atol=1e-6)


def test_positions():
    """Without embeddings of positions the mean of softmax's encoder does not know any order, with them it does."""
    tokens = batch(9)
    turned = tokens.flip(1)
    for positions, same in (("none", True), ("learned", False)):
        model = build(pooling="mean", positions=positions)
        assert torch.allclose(model([tokens]), model([turned]), atol=1e-6) == same


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "packed"}, "--pooling packed: no layer of 'softmax' has a carry; give luna"),
        ({"encoder_attention_heads": 3}, "--encoder-attention-heads 3: heads share --encoder-embed-dim .* evenly"),
        ({"encoder_layers": 0}, "--encoder-layers 0: give at least 1"),
        ({"embedding_std": -1.0}, "--embedding-std -1.0: give a number above 0"),
        ({"activation_fn": "foo"}, "--activation-fn foo: choose from .*gelu"),
        ({"data_inputs": 2}, "the data has inputs 1, the checkpoint was trained with 2; give data like that of its"),
        ({"data_classes": 7}, "the data has classes 3, the checkpoint was trained with 7"),
        ({"about": None}, "needs --task leapformer_classification"),
        ({"plan": "sparsefinder-distance"}, "cannot be used"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(LeapformerError, match=message):
        build(**options)


class TestFlaws:
    """What the released code of the papers does, by options."""

    def test_a_mean_over_padding(self):
        model = build(pooling="padded-mean")
        short, padded = batch(5), batch(5, width=10)
        assert torch.allclose(model.pooled(short), 2 * model.pooled(padded), atol=1e-6)
        proper = build(pooling="mean")
        assert torch.allclose(proper.pooled(short), proper.pooled(padded), atol=1e-6)

    def test_a_projection_that_is_not_trained(self):
        options = {"abc_slots": "4", "abc_max_length": 40}
        model = build("abc-linformer", freeze="control_table", **options)
        frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
        assert frozen and all(name.endswith("control_table") for name in frozen)
        assert all(p.requires_grad for p in build("abc-linformer", **options).parameters())

    @pytest.mark.parametrize(
        ("pattern", "message"), [("nothing", "no parameter of the model has"), ("(", "not a regular expression")]
    )
    def test_a_bad_pattern(self, pattern, message):
        with pytest.raises(LeapformerError, match=message):
            build(freeze=pattern)

    def test_layers_that_run_again_give_the_same(self):
        plain, again = build().train(), build(checkpoint_activations=True).train()
        again.load_state_dict(plain.state_dict())
        grads = []
        for model in (plain, again):
            torch.manual_seed(3)  # dropout
            model([batch(7, 4)]).square().sum().backward()
            grads.append({name: p.grad for name, p in model.named_parameters()})
        assert all(torch.allclose(grads[1][name], grad) for name, grad in grads[0].items())

    def test_a_carry_cannot_run_again(self):
        with pytest.raises(LeapformerError, match="leave --checkpoint-activations out"):
            build("luna", checkpoint_activations=True)


@pytest.mark.parametrize("task", TASKS)
def test_the_models_of_luna(task):
    """Tay et al.'s sizes; a sequence of the task with the mark before it has room."""
    about = TASKS[task].about([])
    model = build("luna", f"leapformer_classifier_luna_{task}", about)
    longest = {"listops": 2000, "text": 4000, "retrieval": 4000}.get(task, 1024)
    assert model.max_positions() == (longest + 1 if task == "pathfinder" else longest), "the mean needs no mark"
    assert len(model.encoder.layers) == (1 if task == "image" else 4)
    rate = {"image": 0.3, "pathfinder": 0.2}.get(task, 0.1)
    assert (model.args.dropout, model.args.activation_dropout) == (rate, rate), "also after the activation"
    assert abs(model.encoder.embed_tokens.weight.std() - 1) < 0.1, "embeddings begin with variance 1, not scaled"
    assert model.args.pairs == ("concatenated" if task == "retrieval" else "products")


def test_sinusoidal_positions_are_told_apart_and_have_no_parameters():
    model = build(positions="sinusoidal")
    none = build(positions="none")
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in none.parameters())
    one, other = torch.tensor([[3, 4, 5]]), torch.tensor([[5, 4, 3]])
    assert not torch.allclose(model.pooled(one), model.pooled(other), atol=1e-4)
    assert torch.allclose(none.pooled(one), none.pooled(other), atol=1e-5)

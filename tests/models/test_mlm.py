"""Masked language models: independence of the batch, heads, warm starts from fairseq's RoBERTa, and its tasks."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq import options, tasks
from fairseq.data import Dictionary, indexed_dataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models.roberta import RobertaModel
from fairseq.models.roberta.model import base_architecture
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from leapformer_fairseq.attention import MECHANISMS, Capabilities, build, register
from leapformer_fairseq.attention.linear.relu import ReLULinear
from leapformer_fairseq.models.mlm import HubInterface
from leapformer_fairseq.support.errors import LeapformerError

from ..covering import each_with_one, shared_out
from .tiny import PLANS, SIZES, dictionary, make_model

ENCODER_PLANS = [
    name for name in PLANS if "encoder-self" in build(name, 8, 2, block="encoder-self").capabilities.blocks
]
BOS, PAD, EOS = 0, 1, 2
HEAD = "sentence_classification_head"


def mlm(plan="leap", **given):
    return make_model("leapformer_mlm_tiny", plan, **given)


def sentence(length):
    return torch.cat([torch.tensor([BOS]), torch.randint(4, 34, (length - 2,)), torch.tensor([EOS])])


def padded(sentences, columns):
    """Padded on the right, as both tasks do it."""
    batch = torch.full((len(sentences), columns), PAD)
    for row, tokens in zip(batch, sentences, strict=True):
        row[: len(tokens)] = tokens
    return batch


def with_head(model, classes=3):
    model.register_classification_head(HEAD, num_classes=classes)
    return model.double().eval()


# ------------------------------------------------------------------------------------------------- independence
@pytest.mark.parametrize(("plan", "columns"), each_with_one(shared_out(ENCODER_PLANS, 0), [40, 57]))
def test_scores_do_not_depend_on_the_batch(plan, columns):
    model, sentences = mlm(plan), [sentence(length) for length in (40, 17, 3)]
    with torch.no_grad():
        together, _ = model(padded(sentences, columns))
        for row, tokens in zip(together, sentences, strict=True):
            alone, _ = model(tokens.unsqueeze(0))
            torch.testing.assert_close(row[: len(tokens)], alone[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize(("plan", "pooling"), each_with_one(shared_out(ENCODER_PLANS, 1), ["cls", "mean"]))
def test_classes_do_not_depend_on_the_batch(plan, pooling):
    model, sentences = with_head(mlm(plan, pooling=pooling)), [sentence(length) for length in (23, 9, 4)]
    with torch.no_grad():
        together, _ = model(padded(sentences, 30), classification_head_name=HEAD)
        alone = [model(tokens.unsqueeze(0), classification_head_name=HEAD)[0] for tokens in sentences]
    assert together.shape == (3, 3)
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-10)


def test_the_batch_matters_where_padding_is_read():
    """The tests above can fail: padding that counts as a word changes the scores."""
    model, tokens = mlm("softmax"), sentence(9)
    model.encoder.sentence_encoder.padding_idx = -1
    with torch.no_grad():
        alone, together = model(tokens.unsqueeze(0))[0], model(padded([tokens], 12))[0]
    assert (together[:, :9] - alone).abs().max() > 1e-7


# -------------------------------------------------------------------------------------------------------- outputs
@pytest.mark.parametrize("plan", shared_out(ENCODER_PLANS, 2))
def test_only_masked_positions_are_projected(plan):
    model, batch = mlm(plan), padded([sentence(12), sentence(7)], 12)
    masked = torch.zeros_like(batch, dtype=torch.bool)
    masked[0, 3] = masked[0, 8] = masked[1, 2] = True
    projected = []
    model.encoder.lm_head.dense.register_forward_pre_hook(lambda _, inputs: projected.append(inputs[0].shape))
    with torch.no_grad():
        some, _ = model(batch, masked_tokens=masked)
        every, _ = model(batch)
    assert projected == [(3, 16), (2, 12, 16)]
    torch.testing.assert_close(some, every[masked])


def test_what_the_head_looks_at():
    batch = padded([sentence(8), sentence(5)], 8)
    seen = {}
    for pooling in ("cls", "mean"):
        model = with_head(mlm("relu", pooling=pooling))
        model.classification_heads[HEAD].dense.register_forward_pre_hook(
            lambda _, inputs, name=pooling: seen.__setitem__(name, inputs[0])
        )
        with torch.no_grad():
            model(batch, classification_head_name=HEAD)
            features, _ = model(batch, features_only=True)
    torch.testing.assert_close(seen["cls"], features[:, 0])
    torch.testing.assert_close(seen["mean"], torch.stack([features[0].mean(0), features[1, :5].mean(0)]))


def test_features_of_the_encoder_do_not_depend_on_the_pass_before():
    model, batch = mlm("luna"), padded([sentence(8), sentence(5)], 8)
    with torch.no_grad():
        expected, _ = model(batch, features_only=True)
        for _ in range(2):
            torch.testing.assert_close(model.encoder.extract_features(batch)[0], expected, rtol=0, atol=0)
    assert model.encoder.context.carry is None


@pytest.mark.parametrize("pooling", ["cls", "mean", "packed"])
def test_one_sentence_has_the_classes_that_the_model_gives_it(pooling):
    model, tokens = with_head(mlm("luna", pooling=pooling)), sentence(8)
    hub = HubInterface(Namespace(bpe=None, tokenizer=None), SimpleNamespace(source_dictionary=dictionary()), model)
    with torch.no_grad():
        logits, _ = model(tokens.unsqueeze(0), classification_head_name=HEAD)
        torch.testing.assert_close(hub.predict(HEAD, tokens, return_logits=True), logits)
        torch.testing.assert_close(hub.predict(HEAD, tokens), logits.log_softmax(-1))
        with pytest.raises(LeapformerError, match="tokens, but the model has .* positions; shorten the text"):
            hub.predict(HEAD, tokens.repeat(100))


@pytest.mark.parametrize("plan", shared_out(ENCODER_PLANS, 0))
def test_all_parameters_learn(plan):
    model, batch = mlm(plan).train(), padded([sentence(12), sentence(7)], 12)
    model(batch)[0].square().sum().backward()
    still = {name for name, one in model.named_parameters() if one.grad is None or not one.grad.isfinite().all()}
    unused = {name for name, one in model.named_parameters() if not one.requires_grad}
    assert still == unused  # projections that a mechanism does not need are frozen
    assert {name.rsplit(".", 2)[1] for name in unused} == set(MECHANISMS[plan].capabilities.unused_projections)


class Shapes(TorchDispatchMode):
    """Remembers whether any tensor was square in the number of positions."""

    def __init__(self, positions):
        super().__init__()
        self.positions, self.square = positions, False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        found = out if isinstance(out, tuple | list) else [out]
        shapes = [one.shape for one in found if isinstance(one, torch.Tensor)]
        self.square |= any(list(shape).count(self.positions) > 1 for shape in shapes)
        return out


@pytest.mark.parametrize(
    "plan", shared_out([name for name in ENCODER_PLANS if MECHANISMS[name].capabilities.constant_state], 1)
)
def test_nothing_is_quadratic_in_the_length(plan):
    model, batch = mlm(plan, max_positions=1100).float().train(), padded([sentence(1009), sentence(50)], 1009)
    with Shapes(1009) as shapes:
        model(batch, features_only=True)[0].sum().backward()
    assert not shapes.square


def test_the_weights_of_softmax_are_quadratic():
    """The test above can fail."""
    attention, x = mlm("softmax").encoder.layers[0].self_attn, torch.randn(67, 1, 16, dtype=torch.double)
    with Shapes(67) as shapes:
        attention(x, x, x, need_weights=True)
    assert shapes.square


# ----------------------------------------------------------------------------------------------------- warm starts
def roberta(**given):
    """fairseq's own model, of the same sizes."""
    args = Namespace(**{**SIZES, **given})
    base_architecture(args)
    args.max_positions = 512
    torch.manual_seed(7)
    return RobertaModel.build_model(args, SimpleNamespace(source_dictionary=dictionary())).double().eval()


def released(state):
    """The same parameters under the names of the released RoBERTa."""
    old = {}
    for name, value in state.items():
        name = name.replace("encoder.", "decoder.", 1).replace(".layernorm_embedding.", ".emb_layer_norm.")
        if ".q_proj." in name:
            sides = [state[name.replace("decoder.", "encoder.", 1).replace("q_proj", f"{side}_proj")] for side in "qkv"]
            old[name.replace(".q_proj.", ".in_proj_")] = torch.cat(sides)
        elif not any(part in name for part in (".k_proj.", ".v_proj.", ".version")):
            old[name] = value
    return old


@pytest.mark.parametrize(("plan", "names"), each_with_one(shared_out(ENCODER_PLANS, 2), ["of today", "released"]))
def test_warm_start_from_a_roberta_of_fairseq(plan, names):
    stock, model = roberta(), mlm(plan)
    new = model.state_dict().keys() - stock.state_dict().keys()
    before = {name: model.state_dict()[name].clone() for name in new}
    state = stock.state_dict() if names == "of today" else released(stock.state_dict())
    assert (names == "released") == any("in_proj_weight" in name for name in state)
    model.load_state_dict({name: value.clone() for name, value in state.items()}, strict=True)
    assert all(".mechanism." in name for name in new - {"encoder.sentence_encoder.vocabulary"})
    for name, value in model.state_dict().items():
        expected = before[name] if name in new else stock.state_dict()[name]
        if not name.endswith(".version"):
            torch.testing.assert_close(value, expected, rtol=0, atol=0)


def test_softmax_answers_like_the_roberta_it_started_from():
    stock, model, batch = roberta(), mlm("softmax"), padded([sentence(12), sentence(7)], 14)
    keep = batch.ne(PAD)
    with torch.no_grad():
        expected, _ = stock(batch)
        assert not torch.allclose(model(batch)[0][keep], expected[keep])
        model.load_state_dict(released(stock.state_dict()))
        torch.testing.assert_close(model(batch)[0][keep], expected[keep], rtol=0, atol=1e-10)


def test_another_mechanism_goes_on_from_ours():
    first, second = mlm("leap", seed=1), mlm("relu", seed=2)
    second.load_state_dict(first.state_dict(), strict=True)
    torch.testing.assert_close(second.encoder.lm_head.weight, first.encoder.lm_head.weight)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"max_positions": 100}, "embed_positions.weight.*this model's .*--max-positions"),
        ({"encoder_embed_dim": 8}, r"q_proj.weight is \(16, 16\) in the checkpoint .* use the --arch and the width"),
    ],
)
def test_a_checkpoint_of_other_sizes_is_one_line(given, named):
    with pytest.raises(LeapformerError, match=named) as caught:
        mlm("relu", **given).load_state_dict(roberta().state_dict())
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------------------ building it
@pytest.fixture()
def registered():
    """Mechanisms for one test."""
    names = []

    def add(name, mechanism):
        names.append(name)
        return register(name)(mechanism)

    yield add
    for name in names:
        del MECHANISMS[name]


def test_mechanisms_keep_their_own_first_values(registered):
    class Constant(ReLULinear):
        """A mechanism that begins its linear layer with sevens."""

        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            self.layer = nn.Linear(2, 2)
            nn.init.constant_(self.layer.weight, 7)

    registered("constant", Constant)
    model = mlm("constant")
    assert all((layer.self_attn.mechanism.layer.weight == 7).all() for layer in model.encoder.layers)
    assert model.encoder.layers[0].self_attn.q_proj.weight.std() < 0.05, "N(0, 0.02), as in BERT"


def test_a_mechanism_that_is_not_for_encoders_is_refused_by_name(registered):
    class Forward(ReLULinear):
        """Only for decoders."""

        capabilities = Capabilities(dict.fromkeys(("encoder-self", "decoder-cross"), "it looks back"))

    registered("forward", Forward)
    with pytest.raises(LeapformerError, match="encoder-self attention, layer 2: forward cannot be used"):
        mlm("relu,forward")


@pytest.mark.parametrize("given", [{"mha_heads_to_keep": 1}, {"spectral_norm_classification_head": True}])
def test_what_fairseq_cannot_load_again_is_refused(given):
    with pytest.raises(LeapformerError, match="--" + next(iter(given)).replace("_", "-")):
        mlm(**given)


def test_a_checkpoint_of_other_words_is_refused():
    theirs, ours = mlm("relu").state_dict(), mlm("leap")
    ours.load_state_dict(dict(theirs))
    theirs["encoder.sentence_encoder.vocabulary"] += 1
    with pytest.raises(LeapformerError, match="checkpoint's encoder.sentence_encoder knows other words.*dict"):
        ours.load_state_dict(theirs)
    del theirs["encoder.sentence_encoder.vocabulary"]  # fairseq's own have none
    ours.load_state_dict(theirs)


# ------------------------------------------------------------------------------------------------------------ tasks
def write_binary(path, dictionary, lines):
    """Lines as fairseq-preprocess writes them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    builder = indexed_dataset.make_builder(f"{path}.bin", "mmap", vocab_size=len(dictionary))
    for line in lines:
        builder.add_item(dictionary.encode_line(line, add_if_not_exist=False).long())
    builder.finalize(f"{path}.idx")
    dictionary.save(str(path.parent / "dict.txt"))


def words(count):
    return [" ".join(f"w{n}" for n in np.random.randint(0, 30, np.random.randint(3, 9))) for _ in range(count)]


def task_and_model(task, data, *flags):
    """As fairseq-train sets them up."""
    parser = options.get_training_parser(default_task=task)
    arguments = [str(data), "--task", task, "--criterion", task, "--arch", "leapformer_mlm_tiny", *flags]
    config = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, arguments))
    found = tasks.setup_task(config.task)
    found.load_dataset("train")
    return found, found.build_model(config.model), found.build_criterion(config.criterion)


def learned(task, model, criterion):
    """One step on the whole training set; returns what is logged."""
    dataset = task.dataset("train")
    sample = dataset.collater([dataset[i] for i in range(len(dataset))])
    loss, _, logged = criterion(model, sample)
    loss.backward()
    assert loss.isfinite()
    return sample, logged


def test_pre_training(tmp_path):
    write_binary(tmp_path / "train", dictionary(), words(20))
    found = task_and_model("masked_lm", tmp_path, "--tokens-per-sample", "32")
    assert found[1].max_positions() == 32 == found[1].encoder.sentence_encoder.embed_positions.max_positions
    sample, logged = learned(*found)
    assert logged["sample_size"] == sample["target"].ne(PAD).sum() > 0


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_pairs_of_sentences(pooling, tmp_path):
    labels = Dictionary()
    for label in ("no", "yes"):
        labels.add_symbol(label)
    for part in ("input0", "input1"):
        write_binary(tmp_path / part / "train", dictionary(), words(6))
    write_binary(tmp_path / "label/train", labels, ["no", "yes"] * 3)
    flags = ("--num-classes", "2", "--init-token", "0", "--separator-token", "2", "--pooling", pooling)
    sample, logged = learned(*task_and_model("sentence_prediction", tmp_path, *flags))
    tokens = sample["net_input"]["src_tokens"]
    assert (tokens[:, 0] == BOS).all() and (tokens == EOS).sum(1).eq(3).all(), "<s> A </s> </s> B </s>"
    assert 0 <= logged["ncorrect"] <= 6


def labelled(folder, *labels):
    """Sentences, one for each label, and two words that only fill the dictionary, as fairseq-preprocess adds them."""
    known = Dictionary()
    for label in (*dict.fromkeys(labels), "madeupword0000", "madeupword0001"):
        known.add_symbol(label)
    write_binary(folder / "input0/train", dictionary(), words(len(labels)))
    write_binary(folder / "label/train", known, labels)
    return folder


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--num-classes", "2"), "--num-classes 2: the data has the 3 labels no, yes, perhaps; give --num-classes 3"),
        (("--num-classes", "3"), None),
        (("--num-classes", "4"), None),
    ],
)
def test_too_few_classes_are_refused(flags, message, tmp_path):
    data = labelled(tmp_path, "no", "yes", "perhaps")
    if message is None:
        learned(*task_and_model("sentence_prediction", data, *flags))
    else:
        with pytest.raises(LeapformerError, match=f"^{message}$"):
            task_and_model("sentence_prediction", data, *flags)


def test_no_labels_to_compare_with_are_named(tmp_path):
    data = labelled(tmp_path, "no", "yes")
    for suffix in ("bin", "idx"):
        (data / f"label/train.{suffix}").unlink()
    task, model, criterion = task_and_model("sentence_prediction", data, "--num-classes", "2")
    sample = task.dataset("train").collater([task.dataset("train")[0]])
    model(**sample["net_input"], classification_head_name=HEAD)  # nothing is missing for an answer
    with pytest.raises(LeapformerError, match=r"has no labels to compare with; prepare the folder label/ .*--valid-su"):
        learned(task, model, criterion)


def test_ranking(tmp_path):
    for part in ("input0", "input1", "input2", "input3"):
        write_binary(tmp_path / part / "train", dictionary(), words(6))
    (tmp_path / "label").mkdir()
    (tmp_path / "label/train.label").write_text("0\n1\n2\n" * 2)
    flags = ("--num-classes", "3", "--init-token", "0", "--separator-token", "2")
    _, logged = learned(*task_and_model("sentence_ranking", tmp_path, *flags))
    assert logged["nsentences"] == 6

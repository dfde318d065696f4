"""A student's attention beside a teacher's in the same pass: errors, gradients, and nothing left behind."""

import copy

import pytest
import torch

from leapformer_fairseq.modules.alignment import compared, replaced_blocks
from leapformer_fairseq.support.errors import LeapformerError

from ..models.tiny import make_model

PADDING = 1


def pair(arch: str, plan: str, **options):
    """A softmax teacher, and a student with its parameters and other mechanisms."""
    teacher = make_model(arch, "softmax", **options)
    student = make_model(arch, plan, **options)
    state = copy.deepcopy(teacher.state_dict())
    student.load_state_dict(state, strict=True)
    return student, teacher


def text_batch(rows=3, source=7, target=6):
    tokens = torch.randint(4, 30, (rows, source))
    previous = torch.randint(4, 30, (rows, target))
    tokens[1, :2] = PADDING  # on the left, as fairseq pads sources
    previous[2, 4:] = PADDING
    lengths = tokens.ne(PADDING).sum(1)
    return {"src_tokens": tokens, "src_lengths": lengths, "prev_output_tokens": previous}


def speech_batch(rows=2, frames=60, target=6):
    previous = torch.randint(4, 30, (rows, target))
    previous[1, 4:] = PADDING
    frames_of = torch.tensor([frames, frames - 17])
    return {
        "src_tokens": torch.randn(rows, frames, 8, dtype=torch.float64),
        "src_lengths": frames_of,
        "prev_output_tokens": previous,
    }


CASES = {
    "leapformer_nmt_tiny": (text_batch, {}),
    "leapformer_simulst_tiny": (speech_batch, {"waitk_lagging": "2", "fixed_pre_decision_ratio": 3}),
}


def seen_by(model, blocks, batch):
    """What each block of a model is called with, and what it returns, in a plain pass."""
    seen, handles = {}, []
    for block in blocks:
        part = model.get_submodule(block)

        def remember(module, args, options, output, name=block):
            seen[name] = (args, options, output[0])

        handles.append(part.register_forward_hook(remember, with_kwargs=True))
    with torch.no_grad():
        model(**batch)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize("plan", ["leap", "gated-delta", "hedgehog"])
@pytest.mark.parametrize("arch", CASES)
def test_each_block_is_compared_on_what_the_teacher_gives_it(arch, plan):
    make, options = CASES[arch]
    student, teacher = pair(arch, plan, **options)
    batch = make()
    blocks = replaced_blocks(student, teacher)
    places = {id(part): name for name, part in student.named_modules()}
    names = {block.name: places[id(block.student)] for block in blocks}
    assert len(names) == 6
    seen = seen_by(teacher, names.values(), batch)
    keep = batch["prev_output_tokens"].ne(PADDING)
    with torch.no_grad(), compared(blocks, keep) as found:
        student(**batch)
    alone = {name: student.get_submodule(name) for name in names.values()}
    for block in blocks:
        args, call, target = seen[names[block.name]]
        own = alone[names[block.name]](*args, **call)[0]
        real = torch.ones(target.shape[:2], dtype=torch.bool)
        if block.block != "encoder-self":
            real = keep.t()
        elif call.get("key_padding_mask") is not None:
            real = ~call["key_padding_mask"].t()
        error = (own - target)[real].square().sum() / target[real].square().sum()
        assert error > 1e-5, "the mechanisms differ"
        torch.testing.assert_close(found[block.name].output, error.float(), rtol=1e-5, atol=0)


def test_weights_are_compared_where_both_have_some():
    student, teacher = pair("leapformer_nmt_tiny", "leap", decoder_self_attention="gated-delta")
    batch = text_batch()
    blocks = replaced_blocks(student, teacher)
    keep = batch["prev_output_tokens"].ne(PADDING)
    with torch.no_grad(), compared(blocks, keep, weights=True) as found:
        student(**batch)
    assert all((errors.weights > 0) == ("decoder-self" not in name) for name, errors in found.items())


def test_a_student_with_the_teachers_attention_makes_no_error():
    student, teacher = pair("leapformer_nmt_tiny", "leap")
    blocks = [block._replace(student=block.teacher) for block in replaced_blocks(student, teacher)]
    with torch.no_grad(), compared(blocks, None) as found:
        student(**text_batch())
    assert all(float(errors.output) == 0 for errors in found.values())


def test_gradients_are_those_of_the_blocks_alone():
    student, teacher = pair("leapformer_nmt_tiny", "leap")
    blocks = replaced_blocks(student, teacher)
    with torch.no_grad(), compared(blocks, None) as found:
        student(**text_batch())
    torch.stack([errors.output for errors in found.values()]).sum().backward()
    trained = {name for name, parameter in student.named_parameters() if parameter.grad is not None}
    assert trained and all("_attn." in name for name in trained)
    assert any(".mechanism." in name for name in trained) and any(".q_proj." in name for name in trained)
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_the_pass_ends_at_the_last_block():
    student, teacher = pair("leapformer_nmt_tiny", "leap")
    blocks = {block.name: block for block in replaced_blocks(student, teacher)}
    reached = []
    for layer in student.decoder.layers:
        layer.fc1.register_forward_hook(lambda *_: reached.append("fc1"))
    for last, ends in (("decoder-cross.1", 0), ("decoder-self.2", 1), ("decoder-cross.2", 1)):
        reached.clear()
        with torch.no_grad(), compared([blocks["encoder-self.2"], blocks[last]], None) as found:
            student(**text_batch())
        assert found.keys() == {"encoder-self.2", last} and len(reached) == ends


def test_the_student_has_its_attention_again():
    student, teacher = pair("leapformer_nmt_tiny", "leap")
    batch, blocks = text_batch(), replaced_blocks(student, teacher)
    before = student(**batch)[0]
    with torch.no_grad(), compared(blocks, None):
        student(**batch)
    assert torch.equal(student(**batch)[0], before)
    with pytest.raises(RuntimeError), compared(blocks, None):
        raise RuntimeError
    assert torch.equal(student(**batch)[0], before)


def test_a_layer_with_the_teachers_mechanism_is_no_block():
    student, teacher = pair("leapformer_nmt_tiny", "leap", decoder_cross_attention="softmax,leap")
    teacher = make_model("leapformer_nmt_tiny", "softmax")
    names = [block.name for block in replaced_blocks(student, teacher)]
    assert names == ["encoder-self.1", "encoder-self.2", "decoder-self.1", "decoder-self.2", "decoder-cross.2"]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"decoder_layers": 3}, "2 decoder layers, the teacher 3"),
        ({"encoder_attention_heads": 4}, "2 heads in the student"),
    ],
)
def test_other_sizes_are_refused(sizes, message):
    student, teacher = make_model("leapformer_nmt_tiny", "leap"), make_model("leapformer_nmt_tiny", "softmax", **sizes)
    with pytest.raises(LeapformerError, match=message):
        replaced_blocks(student, teacher)

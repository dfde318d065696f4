"""Every length predictor on known lengths: what it learns, what it says, what it refuses."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from fairseq.data import Dictionary

from leapformer_fairseq.models.length_predictors import (
    LENGTH_PREDICTORS,
    LengthPredictor,
    Predictor,
    Setting,
    Source,
    length_options,
    register,
)
from leapformer_fairseq.support.errors import LeapformerError
from tests.covering import kept

WIDTH = 6


def dictionary(*words: str) -> Dictionary:
    found = Dictionary()
    for word in words or ("a", "b", "c"):
        found.add_symbol(word)
    return found


def predictor(
    name: str, frames_per_step: int = 1, timed: bool = True, speech: bool = False, **options
) -> LengthPredictor:
    args = Namespace(length_predictor=name, **{option.name: option.default for option in length_options()})
    vars(args).update(options)
    torch.manual_seed(0)
    return LengthPredictor(Setting(args, WIDTH, None if speech else dictionary(), frames_per_step, timed))


def source(*rows: str, target: tuple[int, ...] | None = None) -> Source:
    """Sentences of letters ("." is the end), padded on the right; states that differ by letter."""
    words = dictionary()
    tokens = torch.full((len(rows), max(map(len, rows))), words.pad())
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = torch.tensor([words.eos() if x == "." else words.index(x) for x in row])
    states = torch.nn.functional.one_hot(tokens, 12)[..., 3 : 3 + WIDTH].float()
    states[tokens == words.pad()] = 100.0  # a predictor that looks there will show it
    return Source(tokens, states, tokens != words.pad(), None if target is None else torch.tensor(target))


def test_ratio_given():
    assert predictor("ratio", length_ratio=1.25)(source("abcd", "ab")).tolist() == [5.0, 2.5]


def test_ratio_learned_from_all_sentences_it_saw():
    model = predictor("ratio")
    with pytest.raises(LeapformerError, match="ratio of target and source lengths is unknown; train with it, or give"):
        model(source("ab"))
    model.observe(source("abcd", "ab", target=(8, 4)))
    model.observe(source("aa", target=(12,)))
    assert model(source("abc", "a")).tolist() == [9.0, 3.0]  # 24 steps of 8 positions


def test_no_length_is_below_one():
    assert predictor("ratio", length_ratio=0.1)(source("ab")).tolist() == [1.0]


def test_lookup_sums_mean_durations():
    model = predictor("lookup")
    with pytest.raises(LeapformerError, match="no durations of source tokens; give --length-table"):
        model(source("ab"))
    model.observe_durations(source("aab", "b"), torch.tensor([[2, 4, 10], [20, 0, 0]]))  # a: 3, b: 15, all: 9
    assert model(source("ab", "aaa", "c")).tolist() == [18.0, 9.0, 9.0], "an unknown token takes the mean of all"


def test_the_end_lasts_no_time():
    """Every source ends with a token that nobody says; a table may give it some time all the same."""
    model = predictor("lookup")
    model.observe_durations(source("ab.", "b."), torch.tensor([[2, 10, 0], [18, 0, 0]]))  # a: 2, b: 14, all: 10
    assert model(source("ab.", "ac.")).tolist() == [16.0, 12.0]


@pytest.mark.parametrize(("table", "frames"), [("a 10\nb 20\n", 30.0), ("a 10\nb 20\n</s> 3\n", 33.0)])
def test_the_end_in_a_table(tmp_path, table, frames):
    (tmp_path / "table").write_text(table)
    model = predictor("lookup", length_table=str(tmp_path / "table"))
    assert model(source("ab.", ".")).tolist() == [frames, max(frames - 30, 1)]


def test_a_table_that_is_not_there(tmp_path):
    """A checkpoint brings its own copy; training without one stops, and does not learn another from the data."""
    (tmp_path / "table").write_text("a 10\n")
    trained, other = (predictor("lookup", length_table=str(tmp_path / name)) for name in ("table", "tabel"))
    with pytest.raises(LeapformerError, match="tabel: there is no such file; give a table of durations"):
        other.observe(source("a.", target=(5,)))
    state = {f"x.{key}": value for key, value in trained.state_dict().items()}
    other.upgrade_state_dict_named(state, "x")
    other.load_state_dict({key.removeprefix("x."): value for key, value in state.items()})
    other.observe(source("a.", target=(5,)))
    other.observe_durations(source("a."), torch.tensor([[100, 0]]))
    assert other(source("aa.")).tolist() == [20.0]


def test_lookup_counts_steps_and_dampens():
    model = predictor("lookup", frames_per_step=4, length_dampening=0.5)
    model.observe_durations(source("ab"), torch.tensor([[5, 9]]))
    assert model(source("ab", "a")).tolist() == [6.0, 2.0]  # floor(14 / 4) / 0.5, floor(5 / 4) / 0.5


def test_lookup_from_a_file(tmp_path):
    (tmp_path / "table").write_text("a\t2.5\nb 10\n")
    model = predictor("lookup", length_table=str(tmp_path / "table"))
    assert model(source("aab")).tolist() == [15.0]
    model.observe_durations(source("a"), torch.tensor([[100]]))
    assert model(source("aab")).tolist() == [15.0], "a given table is not mixed with what the data says"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a 2\nx 3\n", "'x' is not in the dictionary; create the table with this vocabulary"),
        ("a 2\nb\n", "line 2: 'b' is not a token and its mean frames"),
        ("a two\n", "line 1: 'a two' is not a token and its mean frames"),
        ("a -5\n", "line 1: 'a -5' is not a token and its mean frames"),
        ("a nan\n", "line 1: 'a nan' is not a token and its mean frames"),
        ("a 1e30\n", "line 1: 'a 1e30' is not a token and its mean frames"),
        ("\n", "line 1: '' is not a token and its mean frames"),
    ],
)
def test_a_wrong_table_is_named(tmp_path, content, message):
    (tmp_path / "table").write_text(content)
    with pytest.raises(LeapformerError, match=message):
        predictor("lookup", length_table=str(tmp_path / "table"))


def learn(model: LengthPredictor, durations: bool, steps: int = 300) -> None:
    """Train: a lasts 2, b 7, c 12 frames."""
    frames = {4: 2, 5: 7, 6: 12}
    data = source("abc", "bb", "caac", "b")
    truth = torch.tensor([[frames.get(int(token), 0) for token in row] for row in data.tokens])
    data = Source(data.tokens, data.states, data.keep, truth.sum(1))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(steps):
        loss = model.loss(model.log_durations(data), data, truth if durations else None)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("durations", kept([True, False], False))
def test_conv_learns(durations):
    model = predictor("conv", timed=durations, length_dropout=0.0)
    with pytest.raises(LeapformerError, match="conv was never trained; train with a criterion that adds its loss"):
        model(source("ab"))
    learn(model.train(), durations)
    predicted = model.eval()(source("abc", "bb", "caac")).tolist()
    assert predicted == pytest.approx([21, 14, 28], abs=1.01)


@torch.no_grad()
def test_conv_does_not_look_at_padding():
    model = predictor("conv").eval()
    both, alone = model.log_durations(source("abca", "bc")), model.log_durations(source("bc"))
    torch.testing.assert_close(both[1, :2], alone[0])
    assert both[1, 2:].eq(0).all()


def test_conv_is_never_absurdly_long():
    model = predictor("conv")
    model.by_name["conv"].updates += 1
    model.by_name["conv"].out.bias.data.fill_(30.0)
    assert model.eval()(source("a")).tolist() == [1000.0]


def test_oracle_says_the_truth():
    model = predictor("oracle")
    assert model(source("ab", "a", target=(9, 4))).tolist() == [9.0, 4.0]
    with pytest.raises(LeapformerError, match="oracle needs the targets, which .*train with another predictor"):
        model(source("ab"))


def test_a_model_trained_with_one_serves_with_another():
    trained = predictor("conv")
    trained.observe(source("ab", target=(6,)))
    trained.observe_durations(source("ab"), torch.tensor([[2, 4]]))
    for name, expected in (("ratio", 9.0), ("lookup", 8.0)):
        state = {f"x.{key}": value for key, value in trained.state_dict().items()}
        other = predictor(name)
        other.upgrade_state_dict_named(state, "x")
        other.load_state_dict({key.removeprefix("x."): value for key, value in state.items()})
        assert other(source("aab")).tolist() == [expected]


def test_what_a_checkpoint_lacks_starts_untrained():
    state = {}
    predictor("conv").upgrade_state_dict_named(state, "encoder.length_predictor")
    assert "encoder.length_predictor.by_name.conv.out.weight" in state


def test_half_precision_keeps_what_was_counted():
    model = predictor("ratio")
    model.observe(source("ab", target=(100_001,)))
    assert model.half()(source("ab")).tolist() == [100_001.0]  # float16 ends at 65,504


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ratio", {"length_ratio": -1.0}, "--length-ratio -1.0: give decoder steps per position, or 0"),
        ("ratio", {"length_ratio": float("nan")}, "--length-ratio nan: give a number, as in --length-ratio 0"),
        ("ratio", {"length_ratio": "x"}, "--length-ratio 'x': give a number"),
        ("ratio", {"length_in_training": "never"}, "--length-in-training 'never': choose from: true, predicted"),
        ("guess", {}, "--length-predictor 'guess' is unknown; choose from: conv, lookup, oracle, ratio"),
        ("conv", {"length_dropout": 2.0}, "--length-dropout 2.0: give a probability below 1"),
        ("lookup", {"length_dampening": 0.0}, "--length-dampening 0.0: lengths are divided by it"),
        ("conv", {"length_kernel": 4}, "--length-kernel 4, .*give an odd kernel"),
        ("conv", {"length_layers": 0}, "--length-layers 0: give at least one"),
        ("lookup", {"speech": True}, "lookup needs source tokens, but the source is speech; use ratio or conv"),
    ],
)
def test_what_makes_no_sense_is_refused(name, options, message):
    with pytest.raises(LeapformerError, match=message) as error:
        predictor(name, **options)
    assert "\n" not in str(error.value)


def test_a_name_is_registered_once():
    with pytest.raises(LeapformerError, match="length predictor 'ratio' is already registered by .*; rename it"):
        register("ratio")(Predictor)


def test_a_table_that_is_no_text_is_named(tmp_path):
    (tmp_path / "table").write_bytes(b"a 2\n\xff 3\n")
    with pytest.raises(LeapformerError, match="--length-table .*table, line 2, is not UTF-8"):
        predictor("lookup", length_table=str(tmp_path / "table"))


def test_speech_has_the_predictors_that_need_no_tokens():
    model = predictor("ratio", speech=True, length_ratio=0.6)
    heard = source("abcde")
    assert model(Source(None, heard.states, heard.keep)).tolist() == [3.0]
    assert set(predictor("conv", speech=True).by_name) == {"ratio", "conv", "oracle"}
    assert set(LENGTH_PREDICTORS) == {"ratio", "lookup", "conv", "oracle"}

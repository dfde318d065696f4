"""What is kept between calls: of a pass, of batches, of a prompt and its beam, of padding, of training."""

from __future__ import annotations

import shlex
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from leapformer_fairseq.attention import PrefixMask
from leapformer_fairseq.attention.block import Memory
from leapformer_fairseq.models import speech_task
from leapformer_fairseq.models.length_predictors import LengthPredictor, Setting, Source, length_options
from leapformer_fairseq.models.prompts import Prompted
from leapformer_fairseq.modules import PassContext, PassOptions
from leapformer_fairseq.modules.context import StackFacts
from leapformer_fairseq.runtime.simul.exported import ExportedEngine
from leapformer_fairseq.runtime.simul.policy import PolicyOptions
from leapformer_fairseq.runtime.simul.segments import Place, Segmenter, SegmentOptions
from leapformer_fairseq.runtime.simul.session import Session
from leapformer_fairseq.runtime.simul.stream import DecodingOptions, TranslationStream
from leapformer_fairseq.runtime.simul.times import ComputeTimes
from leapformer_fairseq.simul.engine import IncrementalEngine, RecomputeEngine
from leapformer_fairseq.simul.system import TranslationSystem
from leapformer_fairseq.studies import engine
from leapformer_fairseq.studies.launching import Launcher, Losses
from leapformer_fairseq.studies.recipes.recipe import training
from leapformer_fairseq.studies.recipes.speech import write_longest
from leapformer_fairseq.support.errors import LeapformerError

from . import losses
from . import test_every_order as orders
from . import test_every_recipe_option as recipes
from .models.tiny import dictionary
from .scripted import ScriptedSystem, sound
from .studies.recipes.running import Cells

# ------------------------------------------------------------------------------------------------------ the pass


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_a_pass_with_its_own_options_stays(fails: bool) -> None:
    context = PassContext(StackFacts())
    context.lengths, context.beam_size = torch.tensor([7]), 3
    before = dict(context.__dict__)
    try:
        with context.own(PassOptions(PrefixMask(2, 3), weights=True)):
            assert context.options == PassOptions(PrefixMask(2, 3), weights=True)
            assert context.lengths is None and context.beam_size == 1, "nor is anything of before in it"
            context.lengths, context.carry, context.beam_size = torch.tensor([9]), "carry", 5  # type: ignore[assignment]
            context.states, context.tokens = {}, "tokens"  # type: ignore[assignment]
            if fails:
                raise RuntimeError
    except RuntimeError:
        assert fails
    assert context.__dict__ == before and context.options is None


# ---------------------------------------------------------------------------------------------- prompts and padding
class Reads(Prompted):
    """Finds for each token the token itself; its state is the prompts that it has read."""

    def __init__(self) -> None:
        self.context = SimpleNamespace(prompt=None)
        self.passes = 0

    def read(self, tokens: Tensor, incremental_state: dict[str, Any]) -> Tensor:
        self.passes += 1
        incremental_state["read"] = tokens
        return tokens.unsqueeze(-1).double()

    def reorder_incremental_state_scripting(self, state: dict[str, Any], order: Tensor) -> None:  # type: ignore[override]
        state["read"] = state["read"].index_select(0, order)
        self.reorder_incremental_state(state, order)


def test_a_prompt_is_answered_for_each_hypothesis_and_follows_the_beam() -> None:
    decoder, prompt = Reads(), torch.tensor([[2, 5, 6], [2, 7, 8]])
    state: dict[str, Any] = {}
    rows = prompt.repeat_interleave(2, 0)  # two hypotheses of a sentence side by side
    with decoder.prompted(prompt):
        assert torch.equal(decoder.prompt_output(rows[:, :1], state)[:, 0, 0], rows[:, 0])  # type: ignore[index]
        assert torch.equal(state["read"], rows)
        assert torch.equal(decoder.prompt_output(rows[:, :2], state)[:, 0, 0], rows[:, 1])  # type: ignore[index]
        order = torch.tensor([2, 3, 0, 1])
        decoder.reorder_incremental_state_scripting(state, order)
        assert torch.equal(decoder.prompt_output(rows[order], state)[:, 0, 0], rows[order][:, 2])  # type: ignore[index]
        assert decoder.prompt_output(torch.zeros(4, 4), state) is None, "nothing is known behind the prompt"
    assert decoder.passes == 1 and decoder.context.prompt is None


def test_padding_adds_up_over_pieces() -> None:
    memory = Memory(None)
    pieces = [[[1, 1], [0, 0]], [[1, 1], [0, 1]], [[1], [1]]]
    for piece in pieces:
        keep = torch.tensor(piece).bool()
        expected = torch.cat([torch.tensor(one) for one in pieces[: pieces.index(piece)]] or [torch.zeros(2, 0)], 1)
        positions = memory.tokens(keep.shape[1], keep, torch.device("cpu")).positions
        assert torch.equal(positions, expected.sum(1, keepdim=True).long() + keep.long().cumsum(1))
        memory.advance(keep.shape[1], keep)
    assert memory.padded is not None and memory.padded.tolist() == [0, 3] and memory.queries == 5


# ------------------------------------------------------------------------------------------------ length predictors
def predictor(name: str, **options: Any) -> LengthPredictor:
    args = Namespace(length_predictor=name, **{option.name: option.default for option in length_options()})
    vars(args).update(options)
    torch.manual_seed(0)
    return LengthPredictor(Setting(args, 6, dictionary(), 1, True))


def source(tokens: list[list[int]], target: list[int]) -> Source:
    rows = torch.tensor(tokens)
    states = torch.nn.functional.one_hot(rows % 6, 6).float()
    return Source(rows, states, rows.ne(1), torch.tensor(target))


def test_what_is_learned_of_lengths_is_of_all_batches() -> None:
    one, two = source([[5, 6, 2], [7, 2, 1]], [6, 2]), source([[5, 6, 7, 8, 2]], [12])
    ratio, table = predictor("ratio"), predictor("lookup")
    for batch, durations in ((one, [[4, 6, 0], [1, 0, 0]]), (two, [[8, 2, 3, 9, 0]])):
        ratio.observe(batch)
        table.observe_durations(batch, torch.tensor(durations))
    assert ratio.steps(two).tolist() == [5 * (6 + 2 + 12) / (3 + 2 + 5)]
    assert table.steps(two).tolist() == [(4 + 8) / 2 + (6 + 2) / 2 + (1 + 3) / 2 + 9]


def test_the_loss_of_durations_does_not_count_padding() -> None:
    conv = predictor("conv", length_dropout=0.0)
    short, padded = source([[5, 6, 2]], [9]), source([[5, 6, 2, 1, 1]], [9])
    durations = torch.tensor([[4, 6, 3, 0, 0]])
    found = [
        float(conv.loss(conv.log_durations(one), one, durations[:, : one.tokens.shape[1]]))  # type: ignore[arg-type, union-attr]
        for one in (short, padded)
    ]
    assert found[0] == pytest.approx(found[1])


def test_only_training_teaches_durations() -> None:
    model = losses._model("voice")
    table = model.encoder.length_predictor.by_name["lookup"]
    torch.manual_seed(0)
    sample = losses.spoken()
    table.frames.zero_()
    table.tokens.zero_()
    losses.outcome("tacotron2_with_length", sample, training=False)
    assert not table.tokens.any()
    losses.outcome("tacotron2_with_length", sample, training=True)
    assert table.tokens.any()


# ------------------------------------------------------------------------------------------------------- criterions
def test_the_weight_of_a_teacher_is_its_share_of_the_loss() -> None:
    torch.manual_seed(0)
    sample = losses.CASES["leapformer_distillation"].sample()
    found = {
        weight: losses.outcome("leapformer_distillation", sample, distillation_weight=weight) for weight in (0, 0.3, 1)
    }
    loss, size, log = found[0]
    assert loss == pytest.approx(log["loss"], rel=1e-6), "its own loss alone"
    assert found[1][0] == pytest.approx(log["distance"] * sample["ntokens"], rel=1e-5), "the teacher's alone"
    assert found[0.3][0] == pytest.approx(0.7 * found[0][0] + 0.3 * found[1][0], rel=1e-6)


def test_sentences_are_joined_with_the_seed_of_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(speech_task, "join_sentences", lambda *given: calls.append(given[1:]))
    monkeypatch.setattr(speech_task, "_parts", lambda dataset: [dataset])

    class Task:
        def __init__(self, **args: Any) -> None:
            self.args, self.datasets = SimpleNamespace(data="", **args), {}

        def load_dataset(self, split: str) -> None:
            self.datasets[split] = SimpleNamespace()

    for split in ("train_st", "dev_st"):
        speech_task.load_dataset(Task(seed=17, join_sentences=5), split)  # type: ignore[arg-type]
    speech_task.load_dataset(Task(seed=3), "train_asr")  # type: ignore[arg-type]
    assert calls == [(5, 17), (1, 3)], "of training sets alone, with its number and its seed"


# ---------------------------------------------------------------------------------------------------------- recipes
def test_a_training_that_dies_goes_on_as_often_as_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If it has left a new checkpoint each time, and not once more."""
    for restarts in (0, 1, 3):
        tried: list[int] = []

        class Dies:
            def __init__(self, about: Any, tried: list[int] = tried) -> None:
                tried.append(1)

            def poll(self) -> int:
                return 1

            def close(self) -> None:
                """There is no log."""

        ages = iter(range(100))
        monkeypatch.setattr(engine.trainings, "Running", Dies)
        monkeypatch.setattr(engine.trainings, "failure", lambda *given: LeapformerError("died"))
        monkeypatch.setattr(engine, "age_of", lambda checkpoint, ages=ages: next(ages))
        study = Cells(tmp_path, engine.Cell("x", (training(tmp_path, tmp_path / "x"),)))
        state = engine.Engine(study, launcher=Launcher(restarts=restarts)).run()
        assert state.failed == {"x": "died"} and len(tried) == restarts + 1


def test_the_last_validation_counts_for_whether_a_training_was_too_short() -> None:
    for losses_, told in (([5.0] * 9 + [4.0], True), ([4.0] * 9 + [4.0], False), ([5.0] * 9 + [5.5], False)):
        said: list[str] = []
        watch = Losses(["train", "--max-update", "100"], said.append)
        for number, loss in enumerate(losses_, 1):
            watch({"valid_loss": str(loss), "valid_num_updates": str(10 * number)})
        said.clear()
        watch.end("--train-options")
        assert bool(said) == told


def test_the_longest_utterances_are_the_longest_and_belong_together(tmp_path: Path) -> None:
    frames = [30, 100, 20, 90, 9]
    heading, rows = ["id", "n_frames", "tgt_text"], [[f"u{n}", str(count), f"t{n}"] for n, count in enumerate(frames)]
    (tmp_path / "dev_st.tsv").write_text("".join("\t".join(row) + "\n" for row in [heading, *rows]))
    for part in ("source", "target"):
        (tmp_path / f"dev.{part}").write_text("".join(f"{part}{n}\n" for n in range(5)))
    write_longest(tmp_path, 3)
    assert (tmp_path / "dev-long.source").read_text().split() == ["source1", "source3", "source0"]
    assert (tmp_path / "dev-long.target").read_text().split() == ["target1", "target3", "target0"]
    found = [line.split("\t")[0] for line in (tmp_path / "dev-long_st.tsv").read_text().splitlines()]
    assert found == ["id", "u1", "u3", "u0"]


@pytest.mark.parametrize("name", ["wikitext2", "mlm", "glue", "race", "multi30k", "ljspeech", "espeak_tts"])
def test_a_run_is_recorded_with_the_seed_and_the_attention_of_its_training(name: str) -> None:
    """By which rows of tables are made."""
    needed, seeds = recipes.NEEDS[name], ("--seeds", "--seed")[name in ("multi30k", "ljspeech", "espeak_tts")]
    words = [word for word in needed if word not in ("--seeds", "--attention", "leap", "1")]
    said = recipes.dry(name, *words, "--attention", "relu", seeds, "43", "--out", "/O")
    trained = 0
    for folder, (record, commands) in said.folders.items():
        for command in commands:
            if command.startswith("leapformer train "):
                trained += 1
                assert record[: record.index("--seed") + 2] == ("--attention", "relu", "--seed", "43"), folder
                given = shlex.split(command)
                assert given[given.index("--seed") + 1] == "43"
    assert trained


def test_both_the_data_and_the_model_of_a_probe_follow_the_seed() -> None:
    (tokens, weights), (other_tokens, other_weights) = orders._trained(1), orders._trained(2)
    assert tokens != other_tokens and weights != other_weights


# --------------------------------------------------------------------------------------------------------- segments
@pytest.mark.parametrize("kind", ["pause", "tokens", "seconds"])
def test_what_was_forgotten_counts_for_the_least_length_of_a_segment_and_not_for_the_most(kind: str) -> None:
    """A segment is as long as its audio; only what is kept of it has to be little."""
    quiet, found = sound(0.4, -80), []
    for forgotten_s in (0.0, 1.0, 2.6):
        segmenter = Segmenter(SegmentOptions(kind, min_seconds=2.0, max_seconds=3.0, tokens=7, history="window"))
        ends = []
        for audio, tokens in ((sound(2.0), 0), (quiet, 7), (sound(9.0), 0)):
            for start in range(0, len(audio), 640):
                places = [
                    place for place, _ in segmenter.push(audio[start : start + 640], tokens, _pieces(forgotten_s))
                ]
                ends.append(Place.END in places)
        found.append(0.04 * (ends.index(True) + 1))
    at_once = {"pause": 2.4, "tokens": 2.04}.get(kind)
    expected = [at_once] * 3 if at_once else [3.0, 4.0, 5.6]
    assert found == [pytest.approx(moment) for moment in expected]


def _pieces(seconds: float) -> int:
    return round(seconds / 0.04)


# ----------------------------------------------------------------------------------------------------------- drafts
@pytest.mark.parametrize("k", [1, 4, 50])
def test_a_draft_is_of_all_that_was_heard(k: int) -> None:
    """And not what was expected when less was; of a stream that was never asked before it is the same."""
    asked, other = (
        TranslationStream(ScriptedSystem(PolicyOptions("wait-k", k), ends=10**9), DecodingOptions(max_draft=9))
        for _ in range(2)
    )
    found = []
    for seed in range(7):
        for stream in (asked, other):
            stream.push(sound(0.5, seed=seed))
            stream.advance(source_finished=False)
            stream.flush(final=False)
        found.append(asked.draft())
    assert other.draft() == found[-1] and len(set(found)) > 3


def test_drafts_of_every_segment_begin_with_its_first_step() -> None:
    system, options = ScriptedSystem(PolicyOptions("wait-k", 2), ends=10**9), SegmentOptions("seconds", max_seconds=3.0)
    session = Session(system, DecodingOptions(), options, drafts=True)
    events = [*session.push(sound(9.0)), *session.finish()]
    drafts = [[event for event in events if event.segment == number and not event.final] for number in (1, 2, 3)]
    assert len(drafts[0]) == len(drafts[1]) == len(drafts[2]) > 3
    assert [round(one.audio_s - other.audio_s, 6) for one, other in zip(drafts[1], drafts[0], strict=True)] == [
        3.0
    ] * len(drafts[0])


def test_a_system_with_another_k_is_otherwise_the_same_and_has_the_engine_that_was_chosen() -> None:
    model = SimpleNamespace(encoder=SimpleNamespace(chunks=object()))
    policy = PolicyOptions("wait-k", 3, catch_up=0.5, align_layer=2)
    system = TranslationSystem(model, 2, (), None, None, policy, 28, "recompute")  # type: ignore[arg-type]
    assert replace(system, policy=replace(policy, k=7)) == system.waiting(7)
    assert type(system.begin(ComputeTimes())) is RecomputeEngine
    assert type(replace(system, engine="auto").begin(ComputeTimes())) is IncrementalEngine


def test_an_exported_engine_forks_all_that_it_changes_in_place() -> None:
    one: Any = object.__new__(ExportedEngine)
    one.times, one._states = ComputeTimes(), [1]
    other = one.fork()
    other._states += [2]
    other.times.encoder_passes += 1
    assert one._states == [1] and one.times.encoder_passes == 0

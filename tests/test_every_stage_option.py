"""Every option of length predictors, speech, linearize, ablate, probes and models has an effect where it is said to."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from dataclasses import asdict, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from leapformer_fairseq.attention import PrefixMask
from leapformer_fairseq.cli import calls
from leapformer_fairseq.cli import linearize as linearize_command
from leapformer_fairseq.models import synthesis
from leapformer_fairseq.models.length_predictors import LengthPredictor, Setting, Source, length_options
from leapformer_fairseq.models.simulst import parse_lagging
from leapformer_fairseq.models.synthesis import TrainedVoice
from leapformer_fairseq.modules import attentions
from leapformer_fairseq.runtime import engine
from leapformer_fairseq.runtime.beam import Search, go_on, translate
from leapformer_fairseq.runtime.spoken import Manner, Utterance
from leapformer_fairseq.runtime.voice import ExportedVoice, kept
from leapformer_fairseq.studies import trainings
from leapformer_fairseq.studies.ablation import running
from leapformer_fairseq.studies.ablation.search import Candidate, Result, Slot
from leapformer_fairseq.studies.ablation.study import REPLACEMENT, Run, Settings, Study
from leapformer_fairseq.studies.engine import Engine, State
from leapformer_fairseq.studies.launching import Launcher
from leapformer_fairseq.studies.linearize import selection, stages
from leapformer_fairseq.studies.probes import study as probes
from leapformer_fairseq.studies.probes.model import ProbeModel
from leapformer_fairseq.studies.probes.tasks import NOTHING, Batch
from leapformer_fairseq.support import options

from .models.tiny import dictionary, make_model, speech_batch, target_prefix

# ---------------------------------------------------------------------------------------------------- length predictors
WORDS = dictionary()
LENGTHS = {
    "length_in_training": ("predicted", "ratio"),
    "length_ratio": (1.7, "ratio"),
    "length_table": ("table", "lookup"),
    "length_dampening": (1.7, "lookup"),
    "length_layers": (1, "conv"),
    "length_hidden": (9, "conv"),
    "length_kernel": (5, "conv"),
    "length_dropout": (0.0, "conv"),
}


def predicted(name: str, **options: Any) -> list[Any]:
    """What a predictor says before and after it was shown a batch, and its loss in training."""
    args = Namespace(length_predictor=name, **{option.name: option.default for option in length_options()})
    vars(args).update(options)
    torch.manual_seed(0)
    one = LengthPredictor(Setting(args, 6, WORDS, 2, True))
    for title, parameter in one.named_parameters():
        generator = torch.Generator().manual_seed(len(title))
        parameter.data = torch.randn(parameter.shape, generator=generator)
    tokens = torch.tensor([[5, 6, 7, 8, 9, 10, 2], [7, 7, 5, 2, 1, 1, 1]])
    keep = tokens.ne(1)
    source = Source(tokens, torch.randn(2, 7, 6), keep, torch.tensor([9, 4]))
    durations = torch.tensor([[3, 2, 1, 7, 2, 1, 5], [4, 9, 1, 6, 0, 0, 0]])
    one.train()
    one.observe(source)
    one.observe_durations(source, durations)
    found: list[Any] = [one.in_training]
    guessed = one.log_durations(source)
    if guessed is not None:
        found += [float(one.loss(guessed, source, durations)), float(one.loss(guessed, source))]
    one.eval()
    return [*found, one.steps(source).tolist(), sum(parameter.numel() for parameter in one.parameters())]


def test_every_option_of_length_predictors_is_known_here() -> None:
    assert {option.name for option in length_options()} == LENGTHS.keys()


@pytest.mark.parametrize("option", LENGTHS)
def test_every_option_of_a_length_predictor_changes_it(option: str, tmp_path: Path) -> None:
    value, name = LENGTHS[option]
    if value == "table":
        value = str(tmp_path / "table")
        Path(value).write_text("w1 30\nw2 4.5\n")
    assert predicted(name) == predicted(name) != predicted(name, **{option: value})


def test_mean_durations_are_those_of_a_loop() -> None:
    """Of the tokens as often as they were said, without ends and padding."""
    steps = predicted("lookup")[1]
    said = {5: [3, 1], 6: [2], 7: [1, 4, 9], 8: [7], 9: [2], 10: [1]}
    mean = {token: sum(found) / len(found) for token, found in said.items()}
    assert steps == [sum(mean[token] for token in row) // 2 for row in ((5, 6, 7, 8, 9, 10), (7, 7, 5))]


# -------------------------------------------------------------------------------------------------------------- speech
def spoken(manner: Manner, chances: list[float]) -> tuple[int, bool, list[Any]]:
    """Steps that an exported voice makes, whether it stopped, and the units of its pre-net that were dropped."""
    voice: Any = object.__new__(ExportedVoice)
    voice.speaking = SimpleNamespace(values=4, layers=2, units=5, dropout=0.5, per_step=1)
    voice.speakers = None
    dropped, left = [], iter(chances)

    def advance(graph: str, given: Any, states: Any, *outputs: str) -> Any:
        dropped.append((given["kept"] if "kept" in given else next(v for v in given.values() if v.ndim == 4)).sum())
        end = np.array([[next(left)]], np.float32)
        value = SimpleNamespace(numpy=lambda: np.zeros((1, 1, 4), np.float32))
        return (value, SimpleNamespace(numpy=lambda: end)), states

    voice.graphs = SimpleNamespace(begin=lambda *given: {}, advance=advance)
    voice.read = lambda *given: {}
    voice.refined = lambda frames: frames
    one = voice.say([1], manner, np.random.default_rng(manner.seed))
    return len(one.ended), one.stopped, dropped


def test_a_voice_ends_as_it_is_told() -> None:
    chances = [0.1, 0.3, 0.45, 0.55, 0.7, 0.95, 0.99]
    for threshold, steps in ((0.2, 2), (0.4, 3), (0.5, 4), (0.6, 5), (0.9, 6)):
        assert spoken(Manner(threshold), chances)[:2] == (steps, True)
    assert spoken(Manner(0.9, max_steps=3), chances)[:2] == (3, False)
    one, again, other = (spoken(Manner(0.6, seed=seed), chances)[2] for seed in (1, 1, 2))
    assert one == again != other and len(set(one)) > 1
    about: Any = SimpleNamespace(layers=1, units=4000, dropout=0.25)
    units = kept(about, np.random.default_rng(1))
    assert set(np.unique(units)) == {0.0, np.float32(1 / 0.75)} and units.mean() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 16])
@pytest.mark.parametrize("alignments", [0, 1, 3, 4, 9])
def test_so_many_of_the_first_sentences_have_an_alignment(
    alignments: int, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However they are batched, and whichever were spoken before."""
    model: Any = torch.nn.Linear(1, 1)
    model.decoder = SimpleNamespace(n_frames_per_step=1)
    voice: Any = object.__new__(TrainedVoice)
    voice.model, voice.task, voice.speakers = model, SimpleNamespace(src_dict=SimpleNamespace(pad=lambda: 1)), None
    voice.numbers, voice.cmvn = lambda script: [5, 2], None

    def said(model: Any, tokens: Any, *given: Any, alignments: bool) -> list[Utterance]:
        maps = np.zeros((1, 2)) if alignments else None
        return [Utterance(np.zeros((1, 2)), True, np.ones(1), alignment=maps) for _ in tokens]

    monkeypatch.setattr(synthesis, "synthesise", said)
    scripts: Any = [SimpleNamespace(id=str(place), speaker=0, frames=None) for place in range(5)]
    for done in (set[str](), {"0", "2"}):
        spoken_ = list(voice.speak(scripts, Manner(batch_size=batch_size, alignments=alignments), done))
        assert [script.id for script, _ in spoken_] == [script.id for script in scripts if script.id not in done]
        assert [one.alignment is not None for script, one in spoken_] == [
            int(script.id) < alignments for script, _ in spoken_
        ]


def test_graphs_have_as_many_threads_as_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Options:
        intra_op_num_threads = inter_op_num_threads = log_severity_level = 0

        def add_session_config_entry(self, name: str, value: str) -> None: ...

    def session(path: str, options: Any, providers: Any) -> None:
        made.append((options.intra_op_num_threads, options.inter_op_num_threads))

    fake: Any = SimpleNamespace(SessionOptions=Options, InferenceSession=session)
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", fake)
    folder: Any = SimpleNamespace(
        path=Path("/x"), task="translation", engine="onnx", file=lambda name: Path("/x") / name
    )
    engine.Graphs(folder, 7, ["a", "b"])
    assert made == [(7, 1), (7, 1)]


def test_positions_of_a_long_text_go_on_from_piece_to_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "AT_ONCE", 4)
    graphs: Any = object.__new__(engine.Graphs)
    seen: list[Any] = []

    def advance(graph: str, given: Any, own: Any, *outputs: str) -> Any:
        seen.append((given[engine.TOKENS].tolist(), given[engine.POSITIONS].tolist(), given[engine.BEFORE].tolist()))
        return (SimpleNamespace(numpy=lambda: np.zeros((*given[engine.TOKENS].shape, 3))),), own

    graphs.advance = advance
    found, _ = graphs.text(np.arange(20).reshape(2, 10), {}, before=5)
    assert found.shape == (2, 10, 3)
    assert [number for _, positions, _ in seen for number in positions[0]] == list(range(1, 11))
    assert [number for tokens, _, _ in seen for number in tokens[1]] == list(range(10, 20))
    assert all(before == [5] for _, _, before in seen)


# --------------------------------------------------------------------------------------------------------- beam search
class Scripted:
    """Graphs of 7 symbols whose probabilities depend on what was written; the end is not likely."""

    eos, pad, unk, size = 2, 1, 3, 7

    def __init__(self, max_target: int = 40) -> None:
        words = SimpleNamespace(eos=self.eos, pad=self.pad, unk=self.unk)
        self.folder: Any = SimpleNamespace(
            vocabularies={"source": words, "target": words},
            max_target=max_target,
            language=SimpleNamespace(first=self.eos),
        )

    def read(self, tokens: np.ndarray) -> dict[str, Any]:
        return {}

    def begin(self, side: str, rows: int) -> Any:
        return [()] * rows

    def log_probs(self, before: tuple[int, ...]) -> np.ndarray:
        logits = np.random.default_rng([len(before), *before[-3:]]).normal(0, 1.5, self.size)
        logits[self.eos] -= 1.5
        return logits - np.log(np.exp(logits).sum())

    def step(self, tokens: np.ndarray, position: int, order: np.ndarray, own: Any, source: Any) -> tuple[Any, Any]:
        own = [(*own[row], int(token)) for row, token in zip(order.flat, tokens.flat, strict=True)]
        assert all(len(one) == position for one in own)
        return np.array([self.log_probs(one) for one in own]).reshape(*tokens.shape, -1), own

    def text(self, tokens: np.ndarray, own: Any, before: int = 0) -> tuple[np.ndarray, Any]:
        rows = [tuple(tokens[0, : n + 1].tolist()) for n in range(tokens.shape[1])]
        return np.array([[self.log_probs(row) for row in rows]]), [rows[-1]]


SEARCH: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "beam": ([1, 3, 7], {}),
    "max_len_a": ([0.0, 0.5, 1.0], {"max_len_b": 2}),
    "max_len_b": ([200, 3, 5], {}),
    "min_len": ([1, 12, 30], {}),
    "penalty": ([1.0, 0.0, 3.0], {}),
    "unk_penalty": ([0.0, 2.0, -2.0], {}),
    "temperature": ([1.0, 0.5, 2.0], {}),
    "no_repeat_ngram_size": ([0, 1, 2, 3], {}),
    "sampling": ([False, True], {}),
    "topk": ([0, 1, 2], {"sampling": True}),
    "topp": ([0.0, 0.1, 0.7], {"sampling": True}),
}
SEARCHES: dict[str, Any] = {
    "translations": lambda graphs, *options: translate(graphs, [[5, 6, 5, 4, 6, 2]], *options)[0],
    "continuations": lambda graphs, *options: go_on(graphs, [5, 6], *options),
}


def searched(what: str, options: Search, graphs: Any = None) -> list[Any]:
    chances = [np.random.default_rng(1)] if options.sampling else []
    return SEARCHES[what](graphs or Scripted(), options, *([(), chances] if what == "translations" else [chances]))


@pytest.mark.parametrize("what", SEARCHES)
@pytest.mark.parametrize("name", [field.name for field in fields(Search)])
def test_every_option_of_a_beam_search_changes_what_is_found(name: str, what: str) -> None:
    values, more = SEARCH[name]
    values = values if what == "translations" or name != "max_len_a" else [0.0, 1.5, 3.0]  # of a shorter text
    found = [searched(what, Search(**{**more, name: value})) for value in values]
    assert len(set(map(str, found))) == len(values), "\n".join(map(str, found))


@pytest.mark.parametrize("sampling", [False, True])
@pytest.mark.parametrize("penalty", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize(("least", "a", "b"), [(1, 0.0, 200), (3, 0.0, 6), (7, 1.0, 2), (1, 0.5, 0), (0, 0.0, 4)])
def test_hypotheses_are_as_long_as_they_may_be_and_scored_by_their_length(
    sampling: bool, penalty: float, least: int, a: float, b: int
) -> None:
    graphs = Scripted()
    found = searched("translations", Search(4, a, b, least, penalty, sampling=sampling), graphs)
    assert len(found) == 4 and [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    for one in found:
        assert least <= len(one.tokens) - 1 <= int(a * 6 + b), "without the end"
        assert one.tokens[-1] == graphs.eos not in one.tokens[:-1] and graphs.pad not in one.tokens
        begun = [graphs.eos, *one.tokens]
        total = sum(graphs.log_probs(tuple(begun[:n]))[begun[n]] for n in range(1, len(begun)))
        assert one.score == pytest.approx(total / len(one.tokens) ** penalty, rel=1e-5)


# ----------------------------------------------------------------------------------------------------------- linearize
def linearize(tmp_path: Path, **given: Any) -> Any:
    """Stages of a teacher that is not there."""
    settings = dict(
        path=Path("/teacher.pt"), attention=None, out=tmp_path, data=None, keep=0, max_distance=None,
        align_updates=None, distill_updates=None, task_updates=800, align_rate=0.11, distill_rate=0.12, task_rate=0.13,
        distillation_weight=0.31, align_weights=0.41, sentences=17, train_options=[],
    )  # fmt: skip
    one: Any = object.__new__(stages.Linearize)
    one.settings = stages.Settings(**{**settings, **given})  # type: ignore[arg-type]
    one.out, one.data = tmp_path, "/data"
    one.updates = {stages.ALIGN: 100, stages.DISTILL: 400, stages.TASK: 800}
    return one


def value_of(line: str, flag: str) -> str:
    words = line.split()
    assert words.count(flag) == 1, line
    return words[words.index(flag) + 1]


def test_every_stage_has_its_own_numbers(tmp_path: Path) -> None:
    one = linearize(tmp_path, train_options=["--patience", "977"])
    align, distil, task = (
        str(one._stage(name, ["--arch", "x"], Path(f"/start-{name}.pt")).steps[0])
        for name in (stages.ALIGN, stages.DISTILL, stages.TASK)
    )
    for line, rate, updates, weight in (
        (align, "0.11", "100", None), (distil, "0.12", "400", "0.31"), (task, "0.13", "800", "0.0")
    ):  # fmt: skip
        assert (value_of(line, "--lr"), value_of(line, "--max-update")) == (rate, updates)
        assert value_of(line, "--teacher") == "/teacher.pt" and value_of(line, "--patience") == "977"
        assert ("--distillation-weight" in line) == (weight is not None)
        assert weight is None or value_of(line, "--distillation-weight") == weight
        assert value_of(line, "--save-interval-updates") == str(int(updates) // 5)
    assert value_of(align, "--align-weights") == "0.41" and value_of(align, "--criterion") == "leapformer_alignment"
    assert value_of(distil, "--finetune-from-model") == "/start-distill.pt"
    assert [one._numbers(name) for name in (stages.ALIGN, stages.DISTILL, stages.TASK)] == [
        [stages.ALIGN, "100", "0.11", "--patience", "977"], [stages.DISTILL, "400", "0.12", "--patience", "977"],
        [stages.TASK, "800", "0.13", "--patience", "977"],
    ]  # fmt: skip


def test_every_option_of_the_command_is_a_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    values = {
        "path": "/t.pt", "attention": "relu", "out": str(tmp_path), "data": "/d", "keep": 3, "align-updates": 5,
        "distill-updates": 7, "task-updates": 11, "align-rate": 0.13, "distill-rate": 0.17, "task-rate": 0.19,
        "distillation-weight": 0.23, "align-weights": 0.29, "sentences": 31,
    }  # fmt: skip
    got: list[Any] = []
    monkeypatch.setattr(stages, "Linearize", lambda settings, say: got.append(settings) or SimpleNamespace(folder=str))
    given: list[Any] = []
    monkeypatch.setattr(calls, "run_study", lambda study, args, launcher: given.append(launcher) or (State(), 0))
    words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    launched = ["--launcher", "slurm", "--processes", "2", "--machines", "3", "--slurm-options=-p gpu"]
    words += [*launched, "--restarts", "7", "--", "--patience", "37"]
    linearize_command._linearize(options.parse(linearize_command, words))
    (settings,) = got
    assert given == [Launcher("slurm", 2, 3, ["-p", "gpu"], 7)]
    found = {field.name: getattr(settings, field.name) for field in fields(settings)}
    assert found.pop("attention").text == "relu" and found.pop("train_options") == ["--patience", "37"]
    assert found.pop("max_distance") is None
    assert found == {
        name.replace("-", "_"): Path(str(value)) if name in ("path", "out", "data") else value
        for name, value in values.items()
        if name != "attention"
    }


def test_a_distance_is_a_mean_over_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """However they are batched, and for each plan with its blocks replaced."""
    put: dict[str, str] = {}

    def block(name: str) -> Any:
        return SimpleNamespace(
            name=name, student="student", teacher="teacher", put=lambda which: put.__setitem__(name, which)
        )

    def distance(expected: Any, found: Any, batch: list[float]) -> Any:
        replaced = sum(which == "student" for which in put.values())
        return SimpleNamespace(total=sum(batch) * (1 + replaced), tokens=len(batch))

    monkeypatch.setattr(selection, "distance", distance)
    pair: Any = SimpleNamespace(
        blocks=[block("a"), block("b")],
        predicted=lambda *given: None,
        student=None,
        teacher=SimpleNamespace(model=None),
    )
    numbers = [1.0, 2.0, 4.0, 9.0, 3.0]
    plans = [frozenset[str](), frozenset("a"), frozenset("ab")]
    for batches in ([numbers], [numbers[:1], numbers[1:]], [[number] for number in numbers]):
        found = selection.measured(pair, batches, plans)
        assert found == [pytest.approx(3.8 * (1 + len(plan))) for plan in plans]


# ------------------------------------------------------------------------------------------------------------ ablation
def ablated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Settings) -> tuple[Any, list[str]]:
    """The plan that is recommended, and with how many threads each was trained."""
    losses = {"softmax": 5.0, "leap": 5.04, "relu": 5.02}
    speeds = {"softmax": 100.0, "leap": 900.0, "relu": 100.0}
    threads = list[str]()

    class Pretended:
        """A training that ends when it is looked at for the second time."""

        def __init__(self, about: Any) -> None:
            threads.append(about.environment["OMP_NUM_THREADS"])
            self.states = iter([None, 0])

        def poll(self) -> int | None:
            return next(self.states)

        def close(self) -> None:
            """Nothing is open."""

    def collect(folder: Path, threads: int | None) -> dict[str, Any]:
        return asdict(Result(losses[folder.name], speeds[folder.name], 1, 1, 1, ""))

    monkeypatch.setattr(trainings, "Running", Pretended)
    monkeypatch.setattr(running, "collect", collect)
    monkeypatch.setattr(running, "write_reports", lambda study: None)
    slot = Slot("decoder-self", 0, 1)
    runs = [Run({"decoder-self": ("softmax",)}, "baseline")]
    runs += [Run({"decoder-self": (name,)}, REPLACEMENT, Candidate(slot, name)) for name in ("leap", "relu")]
    training: Any = SimpleNamespace(measure="loss", metric="loss", identity="train", command=lambda plan, folder: [])
    ablation = running.Ablation(Study(Path(tempfile.mkdtemp(dir=tmp_path)), training, settings, runs))
    state = Engine(ablation, jobs=settings.jobs).run()
    return ablation.seen(state).recommended, threads


def test_every_setting_of_an_ablation_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def recommended(**given: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setenv("OMP_NUM_THREADS", "7")
            plan, threads = ablated(patch, tmp_path, Settings(**given))
        return plan["decoder-self"], threads

    assert recommended()[0] == ("relu",)
    assert recommended(tolerance=0.001)[0] == ("softmax",) and recommended(tolerance=0.005)[0] == ("relu",)
    assert recommended(speed_weight=0.5)[0] == ("leap",)
    assert recommended(jobs=1)[1] == ["7"] * 3
    assert recommended(jobs=3)[1] == ["1"] * 3, "several at once have one thread each"


def test_a_training_gets_the_threads_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    for threads, expected in ((None, "7"), (1, "1"), (3, "3")):
        assert trainings.environment(threads)["OMP_NUM_THREADS"] == expected


# -------------------------------------------------------------------------------------------------------------- probes
def test_probes_train_as_often_as_asked_and_take_the_mean_of_the_best_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Any] = []
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: steps.append(self.param_groups[0]["lr"]))
    probes.train(probes.Run("recall", "relu", 0.01, 1), updates=4)
    assert len(steps) == 4 and max(steps) <= 0.01 * 4 / probes.WARM_UP
    values = {(0.1, 1): 0.2, (0.1, 2): 0.6, (0.2, 1): 0.9, (0.2, 2): 0.7}
    scores = {probes.Run("recall", "leap", *which): {"8": value, "16": value / 2} for which, value in values.items()}
    ((row,),) = [probes._summary(probes.Study(["recall"], ["leap"], (0.1, 0.2), (1, 2)), "recall", scores)]
    assert row["rate"] == 0.2
    assert row["sizes"]["8"] == {"mean": pytest.approx(80), "least": pytest.approx(70), "most": pytest.approx(90)}
    assert row["sizes"]["16"]["mean"] == pytest.approx(40)


def test_only_answers_that_are_asked_for_are_right_or_wrong() -> None:
    model: Any = ProbeModel(probes.PROBES["recall"], "relu")
    answers = torch.tensor([[NOTHING, 3, NOTHING, 5], [2, NOTHING, NOTHING, NOTHING]])
    told = torch.tensor([[1, 3, 1, 4], [2, 9, 9, 9]])
    model.forward = lambda batch: torch.nn.functional.one_hot(told, 64).float()
    assert model.right(Batch(told, answers)) == pytest.approx(2 / 3)


# -------------------------------------------------------------------------------------------------------------- models
def test_every_k_of_a_range_is_trained_and_the_largest_is_evaluated() -> None:
    assert parse_lagging("2-5,offline,9") == [2, 3, 4, 5, None, 9] and parse_lagging("3") == [3]
    model = make_model("leapformer_simulst_tiny", "leap", waitk_lagging="2-4,offline", fixed_pre_decision_ratio=3)
    batch = {**speech_batch(), "prev_output_tokens": target_prefix(3, 4)}

    def masks() -> set[Any]:
        return {one.mask for one in attentions(model.decoder) if one.encoder_decoder_attention} | {model.decoder.mask}

    assert masks() == {PrefixMask(4, 3)}
    drawn = set()
    model.train()
    for _ in range(40):
        model(**batch)
        assert len(masks()) == 1, "all layers, and the end, follow the same schedule"
        drawn |= masks()
    assert drawn == {PrefixMask(2, 3), PrefixMask(3, 3), PrefixMask(4, 3), None}
    model.set_lagging(2)
    model.eval()
    assert masks() == {PrefixMask(4, 3)}, "whoever evaluates finds the largest"
    model.set_lagging(3, 5)
    assert masks() == {PrefixMask(3, 5)}
    model.eval()
    assert masks() == {PrefixMask(3, 5)}, "what was set for evaluation stays"

"""Every order and every seed: nothing is lost, mixed up or the same twice, and numbers are not sorted as text."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from leapformer_fairseq.data import arrays, joined, parallel
from leapformer_fairseq.data.arrays import About, Example, Split
from leapformer_fairseq.data.corpus import plan as corpus
from leapformer_fairseq.data.corpus.synthesize import coloured_noise
from leapformer_fairseq.data.joined import Joining
from leapformer_fairseq.data.lra import listops
from leapformer_fairseq.data.recordings import Recording
from leapformer_fairseq.models import synthesis
from leapformer_fairseq.models.averaging import best_checkpoints, describe_checkpoint, last_checkpoints
from leapformer_fairseq.models.simulst import END_CLOSED
from leapformer_fairseq.models.synthesis import TrainedVoice
from leapformer_fairseq.runtime.simul.stream import DecodingOptions
from leapformer_fairseq.runtime.spoken import Manner, Utterance
from leapformer_fairseq.runtime.voice import ExportedVoice
from leapformer_fairseq.scoring.comparison import collect
from leapformer_fairseq.scoring.outputs import aligned_hypotheses, score_evaluation, score_validation
from leapformer_fairseq.scoring.runs import compare
from leapformer_fairseq.simul import batch, sentence_training, simulate
from leapformer_fairseq.simul.simulate import put_in_order
from leapformer_fairseq.simul.talks import LOGS, join_logs
from leapformer_fairseq.studies.launching import value_of
from leapformer_fairseq.studies.lra import grid
from leapformer_fairseq.studies.lra.protocols import load
from leapformer_fairseq.studies.probes import study, tasks
from leapformer_fairseq.studies.trainings import mend_last
from leapformer_fairseq.tasks.classification import ClassificationDataset

from .scripted import EOS, drawn, sound

SIZES = {"train": 200, "dev": 60, "test": 60}


# --------------------------------------------------------------------------------------------------------------- seeds
@cache
def planned(seed: int, **sizes: int) -> list[corpus.Utterance]:
    return corpus.plan({**SIZES, **sizes}, seed, (25.0, 40.0))


def voices(seed: int, split: str = "train", **sizes: int) -> list[tuple[Any, ...]]:
    found = corpus.of_split(planned(seed, **sizes), split)
    return [(one.voice, one.rate, one.pitch, one.snr_db, one.noise_colour, one.noise_seed) for one in found]


def sentences(seed: int, split: str = "train", **sizes: int) -> list[str]:
    return [one.english for one in corpus.of_split(planned(seed, **sizes), split)]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> list[Recording]:
    folder = tmp_path_factory.mktemp("sentences")
    found = []
    for number in range(12):
        soundfile.write(folder / f"{number}.wav", sound(0.3 + 0.01 * number, seed=number), 16_000, subtype="PCM_16")
        found.append(Recording(str(number), folder / f"{number}.wav", "", f"said {number}", f"wanted {number}"))
    return found


def joined_talks(recordings: list[Recording], folder: Path, **about: Any) -> tuple[Any, ...]:
    """The order of the sentences, the gaps between them, and the checksum."""
    folder.mkdir(parents=True)
    segments, more = joined.join(recordings, Joining(talks=2, minutes=0.04, **about), folder)
    return [one.target for one in segments], [one.start for one in segments], more["checksum"]


def _listops(seed: int) -> Any:
    return [tree.source for tree in islice(listops.distinct(Random(seed), listops.Trees(5, 40, 4, 4)), 5)]


def _probe(seed: int) -> Any:
    draw = tasks.PROBES["recall"].draw(4, tasks.Size(32, 4), torch.Generator().manual_seed(seed))
    return draw.tokens.tolist()


def _trained(seed: int) -> Any:
    """What the first batch of a training is, and what the model begins with."""
    seen: list[Any] = []

    class Stop(Exception):
        pass

    def loss(model: Any, batch: Any) -> Any:
        seen.extend([batch.tokens.tolist(), float(model.embedding.weight.detach().sum())])
        raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study.ProbeModel, "loss", loss)
        with pytest.raises(Stop):
            study.train(study.Run("recall", "relu", 0.01, seed))
    return seen


def _voice(seed: int) -> Any:
    drawn = []
    voice: Any = object.__new__(ExportedVoice)
    voice.numbers, voice._cmvn = lambda script: [1], None

    def say(numbers: Any, manner: Any, rng: Any, speaker: int) -> Any:
        drawn.append(rng.random())
        return study.Run("", "", 0.0, 0)

    voice.say = say
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("leapformer_fairseq.runtime.voice.replace", lambda one, frames: one)
        patch.setattr(study.Run, "frames", None, raising=False)
        scripts = [Namespace(id=str(place), speaker=0) for place in range(3)]
        list(voice.speak(scripts, Manner(seed=seed)))
        assert len(set(drawn)) == 3, "each sentence has an own draw"
        whole = list(drawn)
        drawn.clear()
        list(voice.speak(scripts, Manner(seed=seed), done={"0"}))
        assert drawn == whole[1:], "a sentence is the same whatever was spoken before"
    return whole


def _checkpoint_voice(seed: int) -> Any:
    """What a checkpoint draws for each batch of sentences."""
    drawn: list[float] = []
    voice: Any = object.__new__(TrainedVoice)
    model = torch.nn.Linear(1, 1)
    model.decoder = Namespace(n_frames_per_step=1)  # type: ignore[assignment]
    voice.model, voice.task, voice.speakers = model, Namespace(src_dict=Namespace(pad=lambda: 1)), None
    voice.numbers, voice.cmvn = lambda script: [5, 2], None

    def said(model: Any, tokens: Any, *given: Any, **more: Any) -> list[Utterance]:
        drawn.append(float(torch.rand(())))
        return [Utterance(np.zeros((1, 2)), True, np.ones(1)) for _ in tokens]

    scripts: Any = [Namespace(id=str(place), speaker=0, frames=None) for place in range(7)]
    manner = Manner(seed=seed, batch_size=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthesis, "synthesise", said)
        list(voice.speak(scripts, manner))
        whole = list(drawn)
        assert len(set(whole)) == 4, "each batch has an own draw"
        drawn.clear()
        list(voice.speak(scripts, manner, done={"0", "1", "4"}))
        assert drawn == whole[1:], "a batch is the same whatever was spoken before"
    return whole


def _epoch_order(seed: int) -> Any:
    dataset: Any = object.__new__(ClassificationDataset)
    dataset.seed, dataset.epoch, dataset.shuffle = seed, 1, True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClassificationDataset, "__len__", lambda self: 30)
        first = list(dataset.ordered_indices())
        dataset.set_epoch(2)
        second = list(dataset.ordered_indices())
    assert sorted(first) == sorted(second) == list(range(30)) and first != second, "each epoch has an order of its own"
    return first, second


def _sentence_ends(seed: int) -> Any:
    """What the network begins with, and what it is shown."""
    drawn: list[float] = []
    frames = np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32)

    def joined_(recordings: Any, rng: np.random.Generator) -> Any:
        drawn.append(rng.random())
        return frames, [20]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentence_training, "joined", joined_)
        patch.setattr(sentence_training, "evaluate", lambda *given: {0.5: sentence_training.Counts()})
        settings = sentence_training.Settings(updates=1, units=3, rate=1e-12, seed=seed)
        model = sentence_training.train([frames, frames], [frames, frames], settings)
    return [(float(model.enter_weight.sum()), round(drawn[0], 6))]


SEEDED = {
    "ends of sentences": _sentence_ends,
    "sentences of a corpus": sentences,
    "voices of a corpus": voices,
    "noise": lambda seed: coloured_noise(seed, 1.0, 50).tolist(),
    "listops": _listops,
    "probes": _probe,
    "trainings of probes": _trained,
    "speech": _voice,
    "speech of a checkpoint": _checkpoint_voice,
    "order of examples": _epoch_order,
}


@pytest.mark.parametrize("name", SEEDED)
def test_a_seed_decides(name: str) -> None:
    function = SEEDED[name]
    one, again, other = function(1), function(1), function(2)
    assert one == again, "the same seed, the same result"
    assert one != other, "another seed, another result"
    if isinstance(one, list) and isinstance(one[0], tuple):  # all parts of it, not some
        assert all([part[at] for part in one] != [part[at] for part in other] for at in range(len(one[0])))


@pytest.mark.parametrize("about", [{"gap_s": (0.1, 0.4)}, {"gap_s": (0.1, 0.1), "snr_db": 10.0}, {"gap_s": (0.1, 0.1)}])
def test_a_seed_decides_about_talks(about: dict[str, Any], recordings: list[Recording], tmp_path: Path) -> None:
    one, again, other = (
        joined_talks(recordings, tmp_path / f"{number}", seed=seed, **about) for number, seed in enumerate((1, 1, 2))
    )
    assert one == again and one[0] != other[0], "the order of the sentences"
    assert sorted(set(one[0])) == sorted(one[0])[: len(set(one[0]))] or len(one[0]) >= len(recordings)
    assert len(set(one[0][:12])) == min(12, len(one[0])), "each sentence once before any again"


def test_splits_of_a_corpus_have_nothing_in_common_and_one_does_not_depend_on_another() -> None:
    by_split = {split: sentences(1, split) for split in SIZES}
    every = [sentence for found in by_split.values() for sentence in found]
    assert len(set(every)) == len(every)
    spoken = {split: voices(1, split) for split in SIZES}
    assert all(a != b for a, b in zip(spoken["dev"], spoken["test"], strict=True)), "not the same voices in all splits"
    assert all(a != b for a, b in zip(spoken["train"], spoken["test"], strict=False))
    for split in ("dev", "test"):
        assert sentences(1, split, train=300) == by_split[split] and voices(1, split, train=300) == spoken[split]
    assert sentences(1, "test", dev=90) == by_split["test"]


def test_all_voices_speeds_pitches_and_colours_occur() -> None:
    found = corpus.plan({"train": 700, "dev": 1, "test": 1}, 1, (25.0, 40.0))
    assert {one.voice for one in found} == set(corpus.VOICES)
    assert {one.rate for one in found} == set(range(corpus.RATES[0], corpus.RATES[1] + 1))
    assert {one.pitch for one in found} == set(range(corpus.PITCHES[0], corpus.PITCHES[1] + 1))
    assert {one.noise_colour for one in found} == set(corpus.NOISE_COLOURS)
    ratios = [one.snr_db for one in found]
    assert 25 <= min(ratios) < 25.2 and 39.8 < max(ratios) <= 40


# -------------------------------------------------------------------------------------------------------------- orders
NUMBERS = [10, 2, 33, 1, 0, 100, 9, 11, 3]


def test_a_log_is_sorted_by_number(tmp_path: Path) -> None:
    log = tmp_path / "instances.log"
    log.write_text("".join(json.dumps({"index": number, "prediction": f"p{number}"}) + "\n" for number in NUMBERS))
    put_in_order(tmp_path)
    found = [json.loads(line) for line in log.read_text().splitlines()]
    assert found == [{"index": number, "prediction": f"p{number}"} for number in sorted(NUMBERS)]


def test_hypotheses_are_sorted_by_number(tmp_path: Path) -> None:
    path = tmp_path / "generate-test.txt"
    order = [10, 2, 8, 1, 0, 9, 11, 3, 5, 4, 7, 6]
    path.write_text("".join(f"D-{number}\t0.1\ttext {number}\nD-{number}\t0.0\tworse\n" for number in order))
    references = [f"reference {number}" for number in range(12)]
    assert aligned_hypotheses([path], references) == [f"text {number}" for number in range(12)]


def test_joined_logs_have_a_number_for_each_talk(tmp_path: Path) -> None:
    recordings = [tmp_path / f"talk{number}.wav" for number in range(3)]
    (tmp_path / LOGS).mkdir()
    for path in recordings:
        lines: list[dict[str, Any]] = [
            {"model_loading_time": 1.0},
            {"id": 0, "metadata": {"wav_name": str(path)}},
            {"id": 0, "total_audio_processed": 1.0, "computation_time": 0.1, "generated_tokens": [f"\u2581{path.stem}"],
             "deleted_tokens": []},
        ]  # fmt: skip
        (tmp_path / LOGS / f"{path.stem}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    entries = [json.loads(line) for line in join_logs(tmp_path, recordings, "word").read_text().splitlines()]
    assert sum("model_loading_time" in entry for entry in entries) == 1
    said = [(entry["id"], entry["generated_tokens"]) for entry in entries if "generated_tokens" in entry]
    assert said == [(number, [f"\u2581talk{number}"]) for number in range(3)]


def test_of_several_results_in_a_log_the_last_one_counts(tmp_path: Path) -> None:
    log = tmp_path / "eval.log"
    log.write_text(
        "Evaluated 1,000 tokens\nLoss (base 2): 9.0, Perplexity: 512.0\n"
        "Evaluated 1,200 tokens\nLoss (base 2): 3.0, Perplexity: 8.0\n"
    )
    assert score_evaluation(log, 1200)["scores"] == {"perplexity": 8.0, "bits": 3.0}
    log.write_text("valid on 'valid' subset | loss 1 | accuracy 10\nvalid on 'valid' subset | loss 2 | accuracy 90.5\n")
    found = score_validation(log, 77)
    assert found["scores"] == {"accuracy": 90.5} and found["n_instances"] == 77
    assert value_of(["--max-update", "5", "--lr", "1", "--max-update", "7"], "--max-update") == "7"
    assert value_of(["--lr=2", "--lr", "1"], "--lr") == "1" and value_of(["--lr", "1", "--lr=2"], "--lr") == "2"
    assert value_of(["--lr", "1"], "--max-update") is None


def a_grid(folder: Path) -> grid.Grid:
    return grid.Grid(load("reduced"), folder / "data", folder / "out", ())


def test_every_training_of_a_grid_has_its_own_seed_and_folder_and_they_agree(tmp_path: Path) -> None:
    """Also where the protocol or the user names a seed for none of them."""
    one = replace(a_grid(tmp_path), tasks=["listops", "pathfinder"], rows=["softmax", "leap"], seeds=[7, 1, 43, 1])
    cells = one.trainings()
    assert len(cells) == len(set(cells)) == 12 and [cell.seed for cell in cells] == [7] * 4 + [1] * 4 + [43] * 4
    for cell in cells:
        command = one.train_words(cell)
        last = {flag: command[-1 - command[::-1].index(flag) + 1] for flag in ("--seed", "--save-dir")}
        assert last == {
            "--seed": str(cell.seed),
            "--save-dir": str(tmp_path / f"out/{cell.task}/{cell.row}-seed{cell.seed}"),
        }
        assert command.count("--seed") == 1 and str(tmp_path / f"data/{cell.task}") in command
    assert len({tuple(one.train_words(cell)) for cell in cells}) == 12


@pytest.mark.parametrize("place", range(3))
def test_of_several_validations_of_a_grid_the_best_counts(place: int, tmp_path: Path) -> None:
    """Whichever it is: its checkpoint is what is tested."""
    values = ["9.5", "31.25", "10.75"]
    values = values[place:] + values[:place]
    log = tmp_path / "train.log"
    lines = [{"train_loss": "1", "num_updates": "5"}, *({"valid_accuracy": value} for value in values)]
    log.write_text("".join(f"2026 | INFO | valid | {json.dumps(line)}\n" for line in lines))
    assert grid._best_accuracy(log) == 31.25
    log.write_text("2026 | INFO | nothing\n")
    assert grid._best_accuracy(log) is None


class InTurn:
    """A pool whose processes are this one, from the last portion to the first."""

    made: list[int]

    def __init__(self, jobs: int, *given: Any) -> None:
        self.made.append(jobs)

    def __enter__(self) -> InTurn:
        return self

    def __exit__(self, *given: object) -> None: ...

    def submit(self, function: Any, *given: Any) -> Any:
        return lambda: function(*given)

    def shutdown(self, **given: Any) -> None: ...


@pytest.mark.parametrize("jobs", [1, 2, 7])
def test_portions_are_spread_over_as_many_processes_as_asked(jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is worked on once, by what a process builds once; one process needs no other."""
    built: list[Any] = []

    def build(args: Any) -> Any:
        built.append(args)
        return lambda portion: 10 * portion

    monkeypatch.setattr(InTurn, "made", [], raising=False)
    monkeypatch.setattr("leapformer_fairseq.support.processes.ProcessPoolExecutor", InTurn)
    monkeypatch.setattr(simulate, "as_completed", lambda works: (Namespace(result=work) for work in works[::-1]))
    monkeypatch.setattr(simulate, "_work", None)
    monkeypatch.setattr(simulate.signal, "signal", lambda *given: None)
    found = list(simulate.spread(lambda portion: -portion, build, Namespace(a=1), range(5), jobs))
    if jobs == 1:
        assert (InTurn.made, built, found) == ([], [], [0, -1, -2, -3, -4])
    else:
        assert (InTurn.made, built, found) == ([jobs], [Namespace(a=1)], [40, 30, 20, 10, 0])


def test_rows_are_in_the_order_of_seeds_and_compared_with_the_same_options() -> None:
    def run(attention: str, seed: int, options: str, value: float) -> dict[str, Any]:
        return {"run": f"{attention}{seed}", "set": "test", "attention": attention, "seed": seed, "options": options,
                "scores": {"BLEU": value}, "model": {"epoch": seed, "valid_loss": value / 10}}  # fmt: skip

    runs = [run("leap", 10, "a", 30.0), run("leap", 2, "a", 20.0), run("leap", 1, "a", 13.0)]
    runs += [run("softmax", 1, "a", 25.0), run("softmax", 1, "b", 5.0)]
    rows = {(row["attention"], row["options"]): row for row in compare(runs, ["softmax"])}
    leap = rows["leap", "a"]
    assert (leap["seeds"], leap["epochs"]) == ([1, 2, 10], [1, 2, 10])
    assert leap["scores"]["BLEU"] == {"mean": 21.0, "min": 13.0, "max": 30.0}
    assert leap["difference"] == pytest.approx(-4) and leap["valid_loss"] == pytest.approx(2.1)
    assert rows["softmax", "a"]["difference"] is None
    assert [row["attention"] for row in compare(runs, ["softmax"])] == ["softmax", "softmax", "leap"]


def test_rows_of_a_comparison_are_sorted_by_k(tmp_path: Path) -> None:
    for name in ("k10", "k2", "k1", "offline"):
        (tmp_path / "leap" / name).mkdir(parents=True)
        scores = {"scores": {"BLEU": 1.0}, "signatures": {}, "compute": None, "n_instances": 7}
        (tmp_path / "leap" / name / "scores.json").write_text(json.dumps(scores))
    assert [row["k"] for row in collect(tmp_path)["systems"]["leap"]["rows"]] == [1, 2, 10, "offline"]


def checkpoint(path: Path, **more: Any) -> Path:
    state = {"cfg": {"model": Namespace(arch="x"), "checkpoint": {}}, "model": {"weight": torch.ones(2)}, **more}
    torch.save(state, path)
    return path


def test_checkpoints_are_sorted_by_number(tmp_path: Path) -> None:
    for epoch in (1, 2, 9, 10, 11):
        checkpoint(tmp_path / f"checkpoint{epoch}.pt")
    for loss in ("9.50", "10.25", "2.75"):
        checkpoint(tmp_path / f"checkpoint.best_loss_{loss}.pt")
    assert [path.stem for path in last_checkpoints(tmp_path, 3)] == ["checkpoint9", "checkpoint10", "checkpoint11"]
    assert {path.name for path in best_checkpoints(tmp_path, 2)} == {
        "checkpoint.best_loss_2.75.pt", "checkpoint.best_loss_9.50.pt"
    }  # fmt: skip
    history = [{"num_updates": 100}, {"num_updates": 250}]
    about = describe_checkpoint(
        checkpoint(
            tmp_path / "x.pt",
            optimizer_history=history,
            extra_state={"train_iterator": {"epoch": 7, "iterations_in_epoch": 3}},
        )
    )
    assert about["updates"] == 250 and about["epoch"] == 7


def test_a_broken_last_checkpoint_becomes_the_newest_whole_one(tmp_path: Path) -> None:
    import os

    for age, name in ((3, "checkpoint1.pt"), (2, "checkpoint2.pt"), (1, "checkpoint_best.pt")):
        checkpoint(tmp_path / name, name=name)
        os.utime(tmp_path / name, (10_000 - age, 10_000 - age))
    (tmp_path / "checkpoint_last.pt").write_bytes(b"half")
    mend_last(tmp_path)
    assert torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)["name"] == "checkpoint_best.pt"


# ------------------------------------------------------------------------------------------------------------- batches
class ScriptedModel:
    """What it writes follows from what the encoder has of a row, from the row's state, and from its last token."""

    def __init__(self) -> None:
        self.encoder, self.decoder, self.weight = Rows(), Rows(), torch.zeros(1)
        self.encoder.forward = lambda src_tokens, src_lengths: src_tokens[:, 0, 0].long()
        self.decoder.forward = self.write

    def parameters(self) -> Any:
        return iter([self.weight])

    def max_decoder_positions(self) -> int:
        return 30

    def write(self, tokens: Any, encoder_out: Any, incremental_state: dict[str, Any]) -> Any:
        own = incremental_state.setdefault("rows", encoder_out.clone())
        drawn_ = [(int(a), int(b), int(row[-1]) % 3) for a, b, row in zip(encoder_out, own, tokens, strict=True)]
        logits = torch.tensor([[drawn(*one, token) % 997 for token in range(25)] for one in drawn_]).float()
        logits[:, EOS] = torch.where(tokens.shape[1] > 3 * own, 1000.0, -1.0)  # the one with the least number first
        return logits.unsqueeze(1), {END_CLOSED: torch.zeros(len(tokens), dtype=torch.bool)}


class Rows:
    forward: Any

    def __call__(self, *given: Any, **more: Any) -> Any:
        return self.forward(*given, **more)

    def reorder_encoder_out(self, encoder_out: Any, order: Any) -> Any:
        return encoder_out[order]

    def reorder_incremental_state_scripting(self, state: Any, order: Any) -> None:
        state["rows"] = state["rows"][order]


@pytest.mark.parametrize("repeats", [0, 1, 2])
@pytest.mark.parametrize("order", [(1, 2, 3, 4, 5), (5, 4, 3, 2, 1), (4, 1, 5, 3, 2)])
def test_a_row_of_a_batch_is_what_it_is_alone_whichever_ends_first(order: tuple[int, ...], repeats: int) -> None:
    system: Any = Namespace(model=ScriptedModel(), eos=EOS, forbidden=(0, 1))
    options = DecodingOptions(max_len_b=20, no_repeat_ngram_size=repeats)
    alone = {number: batch._greedy(system, options, [torch.full((4, 1), float(number))])[0] for number in order}
    found = batch._greedy(system, options, [torch.full((4, 1), float(number)) for number in order])
    assert found == [alone[number] for number in order]
    assert len(set(map(len, found))) > 2 and len(set(map(tuple, found))) == 5, "they end one after the other"
    for tokens in found:
        grams = [tuple(tokens[i : i + repeats]) for i in range(len(tokens) - repeats + 1)]
        assert not repeats or len(set(grams)) == len(grams)


# ------------------------------------------------------------------------------------------------------------- readers
def test_arrays_keep_all_examples_and_the_first_ones_are_the_first(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    examples = [Example((rng.integers(1, 20, 3 + n % 5), rng.integers(1, 20, 7 - n % 4)), n % 3) for n in range(11)]
    about = About(30, 3, 2)
    arrays.write_about(tmp_path, about)
    assert arrays.write_split(tmp_path, "train", examples, about)["examples"] == 11
    for first in (0, 4):
        split = Split(tmp_path, "train", first)
        wanted = examples[: first or None]
        assert len(split) == len(wanted)
        for i, expected in enumerate(wanted):
            assert split[i].label == expected.label
            for got, sequence in zip(split[i].sequences, expected.sequences, strict=True):
                np.testing.assert_array_equal(got, sequence)
        assert split.lengths().tolist() == [max(map(len, one.sequences)) for one in wanted]


def test_listops_are_read_to_the_end_and_no_further_than_asked(tmp_path: Path) -> None:
    trees = list(islice(listops.distinct(Random(1), listops.Trees(5, 60, 4, 4)), 7))
    path = tmp_path / "basic_val.tsv"
    path.write_text(listops.HEADER + "\n" + "".join(f"{tree.source}\t{tree.target}\n" for tree in trees))
    whole, cut = list(listops.read(path)), list(listops.read(path, longest=6))
    assert [one.label for one in whole] == [tree.target for tree in trees] == [one.label for one in cut]
    assert [len(one.sequences[0]) for one in whole] == [tree.length for tree in trees]
    assert [one.sequences[0].tolist() for one in cut] == [one.sequences[0].tolist()[:6] for one in whole]
    assert all(tree.length > 5 for tree in trees) and any(len(one.sequences[0]) > 6 for one in whole)


@pytest.mark.parametrize("trees", [listops.Trees(2, 7, 2, 2), listops.Trees(5, 40, 4, 4)])
def test_no_tree_is_generated_twice_and_each_seed_has_others(trees: Any) -> None:
    one, other = ([tree.source for tree in islice(listops.distinct(Random(seed), trees), 200)] for seed in (1, 2))
    assert len(set(one)) == len(set(other)) == 200 and one != other


def test_windows_end_with_each_sentence_and_are_as_long_as_asked() -> None:
    document = [([f"s{n}"], [f"t{n}"]) for n in range(5)]
    for size in (1, 2, 3, 9):
        found = list(parallel.windows(document, size))
        assert [source[-1] for source, _ in found] == [f"s{n}" for n in range(5)]
        assert [sum(piece != parallel.SEPARATOR for piece in source) for source, _ in found] == [
            min(size, n + 1) for n in range(5)
        ]

"""What is forked, paused, interrupted or cut goes on as if it had not been: nothing is shared, lost or repeated."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.data import FairseqDataset
from fairseq.tasks import FairseqTask

from leapformer_fairseq import PLUGIN_DIR
from leapformer_fairseq.attention import CAUSAL, MECHANISMS, Attention, Cache, TokenInfo, build
from leapformer_fairseq.attention.block import Memory
from leapformer_fairseq.data.joined import _with_noise
from leapformer_fairseq.models.augmentation import JoinedSentences
from leapformer_fairseq.models.streaming_encoder import ArrivingSource
from leapformer_fairseq.models.task import get_batch_iterator
from leapformer_fairseq.modules.attention import fork_state
from leapformer_fairseq.runtime.audio import OnlineFbank
from leapformer_fairseq.runtime.cmvn import Cmvn
from leapformer_fairseq.runtime.formats.runlog import Instance
from leapformer_fairseq.runtime.simul.features import FeatureStream
from leapformer_fairseq.runtime.simul.policy import PolicyOptions
from leapformer_fairseq.runtime.simul.segments import SegmentOptions
from leapformer_fairseq.runtime.simul.session import Session
from leapformer_fairseq.runtime.simul.stream import DecodingOptions, TranslationStream
from leapformer_fairseq.runtime.simul.text import CharEmitter, WordEmitter
from leapformer_fairseq.runtime.simul.times import ComputeTimes
from leapformer_fairseq.scoring.figure import Figure
from leapformer_fairseq.simul.engine import EncodedEngine, IncrementalEngine, RecomputeEngine
from leapformer_fairseq.simul.simulate import Outcome, Utterance, logged
from leapformer_fairseq.studies import curve as curves
from leapformer_fairseq.studies import launching
from leapformer_fairseq.studies.engine import Cell, Command, Engine, State, planned
from leapformer_fairseq.studies.launching import Losses
from leapformer_fairseq.studies.linearize import selection
from leapformer_fairseq.studies.linearize.selection import Swap, choose
from leapformer_fairseq.studies.probes import study as probes

from .models.tiny import make_model, target_prefix
from .scripted import ScriptedSystem, Words, policy_of, sound, talk
from .studies.recipes.running import Cells

# --------------------------------------------------------------------------------------------------------------- forks


@dataclass(frozen=True)
class Forked:
    """Something that can be forked: how it is made, and how it goes on with an input of a number; what came out."""

    make: Callable[[], Any]
    go_on: Callable[[Any, int], Any]
    #: what else it holds that must not change with a fork
    seen: Callable[[Any], Any] = lambda thing: None
    fork: Callable[[Any], Any] = lambda thing: thing.fork()


def noise(seed: int, seconds: float = 0.5) -> np.ndarray:
    return sound(seconds, seed=seed)


def frames(seed: int, count: int = 24) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 8)).astype(np.float32)


def _of_emitter(kind: Any) -> Forked:
    def go_on(emitter: Any, seed: int) -> Any:
        emitter.push(10 + np.random.default_rng(seed).integers(0, 30, 5))
        return emitter.flush(final=False), emitter.starts()

    return Forked(lambda: kind(Words()), go_on)


def _features(stream: FeatureStream, seed: int) -> Any:
    stream.push(noise(seed, 0.333))
    found = []
    while (step := stream.next_step(final=False)) is not None:
        found.append(step)
    return found, stream.n_pending


def _of_engine(kind: Any, **options: Any) -> Forked:
    def make() -> Any:
        model = make_model("leapformer_simulst_tiny", "leap", **options).float()
        return kind(model, 2, ComputeTimes())

    def go_on(engine: Any, seed: int) -> Any:
        given = frames(seed)
        if kind is EncodedEngine:
            states = torch.from_numpy(np.random.default_rng(seed).standard_normal((6, 1, 16)).astype(np.float32))
            engine.feed(states)
        else:
            engine.feed(given)
        found = []
        for token in (4 + seed, 9):
            found.append(engine.step(engine.ready))
            engine.commit(token)
        return found, engine.tokens, engine.n_frames, engine.times.decoder_steps, engine.times.encoder_passes

    return Forked(make, go_on, lambda engine: (copy.copy(engine.times), engine.n_frames, engine.tokens, engine.ready))


def _of_stream(policy: PolicyOptions) -> Forked:
    def go_on(stream: TranslationStream, seed: int) -> Any:
        stream.push(noise(seed, 0.7 + 0.4 * seed))
        stream.advance(source_finished=False)
        return stream.flush(final=False), stream.engine.tokens, list(stream.aligned), stream.draft(), stream.n_samples

    def make() -> TranslationStream:
        return TranslationStream(ScriptedSystem(policy=policy, ends=10**9), DecodingOptions(max_draft=7), aligns=True)

    return Forked(make, go_on, lambda stream: (list(stream.aligned), copy.copy(stream.times), stream.n_steps))


def _arriving() -> Forked:
    model = make_model("leapformer_simulst_tiny", "leap", encoder_chunk_ms=80, encoder_right_context_ms=40)

    def go_on(source: ArrivingSource, seed: int) -> Any:
        given = torch.from_numpy(frames(seed, 22)).double()
        with torch.no_grad():
            return model.encoder.extend(source, given, final=False)

    return Forked(ArrivingSource, go_on, lambda source: (source.n_states, source.fresh))


def _memories() -> Forked:
    """All of a decoder, with the memory of each of its blocks."""
    model = make_model("leapformer_nmt_tiny", "leap").float()
    tokens = torch.arange(4, 11).unsqueeze(0)
    with torch.no_grad():
        encoder_out = model.encoder(tokens, torch.tensor([7]))

    def make() -> dict[str, Any]:
        return {"words": torch.tensor([[2]])}

    def go_on(state: dict[str, Any], seed: int) -> Any:
        words = state["words"]
        kept = {key: value for key, value in state.items() if key != "words"}
        with torch.no_grad():
            logits, _ = model.decoder(words, encoder_out=encoder_out, incremental_state=kept)
        state.update(kept)
        state["words"] = torch.cat([words, torch.tensor([[4 + seed]])], 1)
        return logits

    return Forked(make, go_on, lambda state: state["words"].tolist(), fork_state)


def _caches() -> Forked:
    model = torch.nn.ModuleList(Attention(name, 16, 2) for name in ("gated-leap", "softmax")).double().eval()

    def go_on(cache: Cache, seed: int) -> Any:
        x = torch.randn(1, 3, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        with torch.no_grad():
            for layer in model:
                x = layer(x, cache=cache)
        return x

    return Forked(lambda: Cache(model), go_on)


def _of_state(name: str) -> Forked:
    mechanism = build(name, 8, 2, block="decoder-self", input_dim=16, **STATE_OPTIONS.get(name, {})).double().eval()

    def pieces(seed: int, done: int) -> Any:
        generator = torch.Generator().manual_seed(seed)
        q, k, v = (torch.randn(1, 2, 3, 8, generator=generator, dtype=torch.float64) for _ in range(3))
        tokens = TokenInfo.whole(40).without_lengths().narrow(done, done + 3)
        return q, k, v, TokenInfo(tokens.positions, inputs=k.transpose(1, 2).flatten(2))

    def make() -> Any:
        q, k, v, tokens = pieces(0, 0)
        return [mechanism.init_state(1, 8, k, tokens, CAUSAL), 0]

    def go_on(held: Any, seed: int) -> Any:
        q, k, v, tokens = pieces(seed, held[1])
        with torch.no_grad():
            out, held[0] = mechanism.scan(held[0], q, k, v, tokens, tokens, CAUSAL)
        held[1] += 3
        return out

    return Forked(make, go_on, fork=lambda held: [held[0].fork(), held[1]])


STATE_OPTIONS: dict[str, dict[str, Any]] = {
    "cosformer": {"cosformer_length": 50},
    "luna": {"luna_packed": "learned"},
    "abc-pool": {"abc_pool_size": 50},
    "entmax-window": {"sparse_window": 5},
}
STATES = [
    name
    for name, kind in sorted(MECHANISMS.items())
    if "decoder-self" in kind.capabilities.blocks and kind.capabilities.incremental and not kind.capabilities.missing
]
FORKED: dict[str, Forked] = {
    "runtime.audio.OnlineFbank": Forked(OnlineFbank, lambda fbank, seed: fbank.push(noise(seed, 0.333))),
    "runtime.simul.features.FeatureStream":
        Forked(lambda: FeatureStream(12, Cmvn(np.ones(80), np.ones(80))), _features),
    "runtime.simul.text.WordEmitter": _of_emitter(WordEmitter),
    "runtime.simul.text.WordEmitter of characters": _of_emitter(CharEmitter),
    "simul.engine.Engine": _of_engine(RecomputeEngine),
    "simul.engine.IncrementalEngine": _of_engine(IncrementalEngine, encoder_chunk_ms=80),
    "simul.engine.Engine of states": _of_engine(EncodedEngine, encoder_chunk_ms=80),
    **{
        f"runtime.simul.stream.TranslationStream {policy.name}": _of_stream(policy)
        for policy in (
            PolicyOptions("wait-k", k=2), PolicyOptions("local-agreement"), PolicyOptions("hold-n"),
            PolicyOptions("alignatt"),
        )
    },
    "models.streaming_encoder.ArrivingSource": _arriving(),
    "attention.block.Memory": _memories(),
    "attention.multihead.Cache": _caches(),
    **{f"attention.mechanism.State of {name}": _of_state(name) for name in STATES},
}  # fmt: skip
# tested in tests/simul/test_exported.py, and a protocol
ELSEWHERE = {"runtime.simul.exported.ExportedEngine", "runtime.simul.stream.Engine"}


def test_every_class_that_forks_is_looked_at() -> None:
    found = set()
    for path in PLUGIN_DIR.rglob("*.py"):
        module, name = ".".join(path.relative_to(PLUGIN_DIR).with_suffix("").parts), ""
        for line in path.read_text(encoding="utf-8").splitlines():
            name = line.split()[1].strip(":").partition("(")[0] if line.startswith("class ") else name
            found |= {f"{module}.{name}"} if line.startswith("    def fork(") else set()
    assert found == {name.partition(" ")[0] for name in FORKED} | ELSEWHERE


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor | np.ndarray):
        return one.shape == other.shape and np.array_equal(np.asarray(one), np.asarray(other))
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("name", FORKED)
def test_a_fork_and_what_it_was_forked_from_go_on_alone(name: str) -> None:
    about = FORKED[name]
    expected = {}
    for way in ((1, 2, 3), (1, 4, 5)):
        alone = about.make()
        expected[way] = [about.go_on(alone, number) for number in way]
    assert not same(expected[1, 2, 3][1:], expected[1, 4, 5][1:]), "the input matters"
    thing = about.make()
    about.go_on(thing, 1)
    before = copy.deepcopy(about.seen(thing))
    fork = about.fork(thing)
    found = [about.go_on(fork, 2), about.go_on(fork, 3)]
    assert same(found, expected[1, 2, 3][1:]), "the fork does not go on as the whole"
    assert same(before, about.seen(thing)), "the fork has changed what it was forked from"
    assert same([about.go_on(thing, 4), about.go_on(thing, 5)], expected[1, 4, 5][1:]), "it feels its fork"


@pytest.mark.parametrize("policy", ["wait-k", "local-agreement", "hold-n", "alignatt"])
def test_a_snapshot_can_be_returned_to_any_number_of_times(policy: str) -> None:
    """A look ahead, as policies and drafts take it, leaves nothing."""
    streams = [TranslationStream(ScriptedSystem(policy=policy_of(policy, k=2)), DecodingOptions()) for _ in range(2)]
    for seed in range(6):
        for number, stream in enumerate(streams):
            stream.push(noise(seed, 0.9))
            stream.advance(source_finished=False)
            for _ in range(3 * number):
                stream.continuation()
                stream.draft()
    one, other = (stream.engine.tokens for stream in streams)
    assert one == other


def test_a_session_does_not_depend_on_how_audio_is_cut() -> None:
    """Nor on its last piece, which is shorter than what is read at once."""
    found = []
    for size in (160, 4_001, 10**9):
        session, samples = Session(ScriptedSystem(), DecodingOptions(), SegmentOptions(), drafts=True), talk()
        events = []
        for start in range(0, len(samples), size):
            events += session.push(samples[start : start + size])
        events += session.finish()
        found.append((events, session.n_segments, session.n_tokens, session.n_samples))
        assert session.n_samples == len(samples) and len(samples) % 640, "the rest was heard"
    for _, segments, tokens, samples in found:
        assert (segments, tokens, samples) == found[0][1:]
    assert found[0][0] == found[1][0] == found[2][0]


def test_tokens_of_a_session_count_those_that_were_forgotten() -> None:
    whole, window = (
        Session(ScriptedSystem(ends=10**9), DecodingOptions(), SegmentOptions("seconds", max_seconds=300, **more))
        for more in ({}, {"history": "window", "history_words": 2})
    )
    texts = []
    for session in (whole, window):
        events = [*session.push(np.concatenate([talk(), talk()])), *session.finish()]
        texts.append(sum(len(event.text.replace(" ", "").split("w")) - 1 for event in events))
        assert session.n_tokens >= texts[-1] > 40
    assert window._forgotten == (0, 0) and window.n_tokens == texts[1]


# ------------------------------------------------------------------------------------------------------------ trainings
class Shuffled(FairseqDataset):
    """Sentences whose order depends on the epoch that was told."""

    epoch = 1

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        return index

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        return True

    def ordered_indices(self) -> np.ndarray:
        return np.random.default_rng(self.epoch).permutation(20)

    def size(self, index: int) -> int:
        return 3

    def num_tokens(self, index: int) -> int:
        return 3

    def collater(self, samples: list[int]) -> tuple[int, list[int]]:
        return self.epoch, samples


def epochs(first: int, until: int) -> list[Any]:
    """The batches of some epochs of a training that begins, or goes on, with the first of them."""
    task, dataset = FairseqTask(SimpleNamespace()), Shuffled()
    found = []
    for epoch in range(first, until):
        batches = get_batch_iterator(task, dataset, max_sentences=4, seed=5, epoch=epoch)
        found.append(list(batches.next_epoch_itr(shuffle=True, fix_batches_to_gpus=False)))
        assert batches.epoch == epoch
    return found


def test_a_resumed_training_sees_the_batches_of_an_uninterrupted_one() -> None:
    whole = epochs(1, 5)
    assert [batch[0][0] for batch in whole] == [1, 2, 3, 4], "the data knows the epoch"
    assert len({str(batches) for batches in whole}) == 4, "each epoch has an order of its own"
    for begin in (2, 3, 4):
        assert epochs(begin, 5) == whole[begin - 1 :]


def test_joined_sentences_are_those_of_the_epoch() -> None:
    def drawn(seed: int, epoch: int) -> list[Any]:
        from fairseq.data.audio.dataset_transforms import CompositeAudioDatasetTransform

        from leapformer_fairseq.models.augmentation import join_sentences

        dataset = SimpleNamespace(
            cfg=SimpleNamespace(use_audio_input=False), dataset_transforms=CompositeAudioDatasetTransform([])
        )
        join_sentences(dataset, 4, seed)
        dataset.set_epoch(epoch)
        joined = dataset.dataset_transforms.get_transform(JoinedSentences)
        return [joined.find_indices(index, [], 100) for index in range(30)]

    assert drawn(1, 1) == drawn(1, 1)
    assert len({str(drawn(*which)) for which in ((1, 1), (1, 2), (2, 1), (2, 2))}) == 4
    assert all(1 <= len(found) <= 4 and found[0] == index for index, found in enumerate(drawn(1, 1)))
    assert {len(found) for found in drawn(1, 1)} == {1, 2, 3, 4}


def test_the_time_that_is_left_counts_from_where_a_process_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed training has a share done for which it took no time; of two limits the nearer one counts."""
    now, said = iter([1000.0, 1010.0, 1030.0, 1300.0]), list[str]()
    monkeypatch.setattr(launching.time, "monotonic", lambda: next(now))
    watch = Losses(["train", "--max-epoch", "100", "--max-update", "1000"], said.append)
    for update in (500, 600, 800, 801):
        watch({"loss": "1", "num_updates": str(update), "update": update / 100})
    assert [line.partition(", ")[2] for line in said] == ["", "40 s left", "20 s left", "3 min left"]


def test_blocks_are_replaced_in_the_same_order_after_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [SimpleNamespace(name=name) for name in "abcd"]

    def measured(pair: Any, batches: Any, plans: Any) -> list[float]:
        return [sum(ord(name) * 7 % 13 + len(plan) for name in plan) / 10 for plan in plans]

    monkeypatch.setattr(selection, "measured", measured)
    pair: Any = SimpleNamespace(blocks=blocks)
    whole = list(choose(pair, []))
    assert {swap.block for swap in whole} == set("abcd")
    for done in range(5):
        assert [*whole[:done], *choose(pair, [], whole[:done])] == whole
        assert all(isinstance(swap, Swap) for swap in whole)


def test_linearize_goes_on_with_the_blocks_that_were_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from leapformer_fairseq.studies.linearize import stages

    order = [Swap("a", 0.1), Swap("b", 0.2), Swap("c", 0.3)]
    asked = []

    def chosen(pair: Any, batches: Any, before: Any = ()) -> Any:
        asked.append(list(before))
        return iter(order[len(before) :])

    monkeypatch.setattr(stages, "choose", chosen)
    study: Any = object.__new__(stages.Linearize)
    study.settings = SimpleNamespace(keep=1, max_distance=None, sentences=5, path=Path("t.pt"))
    study.out, study._say, study.everywhere, study.updates = tmp_path, lambda text: None, [], {stages.TASK: 0}
    study.replaced = dict.fromkeys("abc")
    study._pair = lambda checkpoint: SimpleNamespace(batches=lambda sentences: [])
    study._stage = lambda name, words, start, *needs: Cell(name, (), needs=needs)
    study._words_of_student = lambda stays: []
    (tmp_path / "align").mkdir()
    (tmp_path / "align/done").touch()
    (tmp_path / stages.ORDER).write_text(json.dumps({"swaps": order[:1], "first_layer": 1, "signature": ""}))
    assert study.kept(State()) is None
    state = State()
    assert [cell.name for cell in planned(study, state)] == ["align", "choose"] and "choose" not in state.results
    assert study._choose()["swaps"] == order and asked == [[order[0]]]
    assert [cell.name for cell in planned(study, state)][2:] == ["keep1/start", "keep1/distill", "keep1"]
    assert study.kept(state) == {"c"}
    assert json.loads((tmp_path / stages.ORDER).read_text())["swaps"] == [list(swap) for swap in order]


# -------------------------------------------------------------------------------------------------------------- studies
def test_probes_are_trained_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trained = []

    def train(run: Any, updates: Any) -> dict[str, float]:
        trained.append((run, updates))
        return {str(size): (hash((run.rate, run.seed)) % 100) / 100 for size in probes.PROBES[run.probe].tested}

    monkeypatch.setattr(probes, "train", train)
    monkeypatch.setattr(Figure, "save", lambda *given: "")
    study = probes.Study(["recall"], ["leap", "relu"], rates=(0.1, 0.2), seeds=(1, 2, 3), updates=7, out=tmp_path)
    Engine(study).run()
    assert len(trained) == 12 == len(set(trained)) and {updates for _, updates in trained} == {7}
    whole = (tmp_path / "results.json").read_text()
    for lost in islice((tmp_path / "runs").iterdir(), 3):
        lost.unlink()
    Engine(study).run()
    assert len(trained) == 15 and (tmp_path / "results.json").read_text() == whole


def test_repeats_of_a_curve_go_on_after_the_last_utterance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = []

    @dataclass
    class Stub:
        unit: str = "word"
        alone: bool = False

        def translate(self, portion: Any) -> list[Outcome]:
            assert self.alone
            made.extend(one.index for one in portion)
            return [
                Outcome(one, Instance(one.index, "a", "a", (1.0,), (2.0,), 5.0), {"features_s": 1.0, "encoder_s": 1.0,
                        "decoder_s": 1.0, "audio_s": 1.0, "tokens": 1.0})
                for one in portion
            ]  # fmt: skip

    monkeypatch.setattr(curves, "build_simulation", lambda args: Stub())
    timed = dict.fromkeys(("features_s", "encoder_s", "decoder_s"), 1.0)
    monkeypatch.setattr(curves, "score_run", lambda *given: {"compute": timed, "n_instances": 5, "n_empty": 0})
    utterances = [Utterance(index, tmp_path / "x.wav", "a") for index in range(5)]
    setting: Any = SimpleNamespace(name="a")
    words: Any = SimpleNamespace(out=tmp_path / "runs/a", tokenize="13a", num_threads=1)
    (tmp_path / "runs/a").mkdir(parents=True)
    (tmp_path / "runs/a/scores.json").write_text("{}")
    monkeypatch.setattr(curves, "write_reports", lambda curve: None)
    study = curves.Curve(tmp_path, [curves.Run(setting, [], words)], 2, utterances, {}, {})
    monkeypatch.setattr(curves.Curve, "reserve", lambda self: None)
    written = curves.log_outcome

    def log_outcome(folder: Path, outcome: Outcome) -> None:
        if len(made) == 5:
            raise KeyboardInterrupt
        written(folder, outcome)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(curves, "log_outcome", log_outcome)
        Engine(study).run()
    assert made == [0, 0, 1, 2, 3], "the first one warms up, and does not count"
    curves._warmed_up.cache_clear()  # as in another process
    Engine(study).run()
    assert made[5:] == [0, 3, 4, 0, 1, 2, 3, 4]
    for repeat in (1, 2):
        lines = (tmp_path / f"runs/a/repeat{repeat}/instances.log").read_text().splitlines()
        assert [json.loads(line)["index"] for line in lines] == [0, 1, 2, 3, 4]
        assert logged(tmp_path / f"runs/a/repeat{repeat}", "word") == {0, 1, 2, 3, 4}
    Engine(study).run()
    assert len(made) == 13, "nothing is left"


def test_who_watches_a_training_that_goes_on_is_shown_what_is_new_and_all_of_it(tmp_path: Path) -> None:
    """Once, in its order; what the log had before is of another process."""
    log, seen = tmp_path / "a/train.log", list[int]()

    def told(number: int) -> str:
        return f"2026 | INFO | train_inner | {json.dumps({'num_updates': number})}"

    def tell(entry: dict[str, Any]) -> str:
        seen.append(entry["num_updates"])
        return ""

    def step(first: int) -> Command:
        lines = "\n".join(told(number) for number in range(first, first + 3))
        return Command(("-c", f"print({lines!r})"), "train.log", "python", tell=tell)

    log.parent.mkdir()
    log.write_text(f"{told(100)}\n{told(200)}\n")
    Engine(Cells(tmp_path, Cell("a", tuple(map(step, (1, 4, 7)))))).run()
    assert seen == list(range(1, 10))
    assert log.read_text().count("num_updates") == 11, "and the log is whole"


def test_noise_goes_on_from_block_to_block() -> None:
    rng = np.random.default_rng(0)
    noise_, voice = rng.standard_normal(1000), rng.standard_normal(2750)
    whole = voice + np.resize(noise_, 2750)
    cuts = [0, 1, 333, 1000, 1200, 2750]
    blocks = [_with_noise(noise_, voice[a:b], a) for a, b in zip(cuts, cuts[1:], strict=False)]
    np.testing.assert_allclose(np.concatenate(blocks), whole, rtol=0, atol=1e-12)


def test_memory_of_a_block_follows_the_beam_with_all_that_it_holds() -> None:
    """Padding, lengths and state of the entries that stay."""
    model = make_model(
        "leapformer_nmt_tiny", "cosformer", length_predictor="ratio", length_ratio=1.3, cosformer_length=0
    )
    model.encoder.length_predictor.in_training = True
    sources = torch.randint(4, 30, (3, 7))
    sources[1, :3] = 1
    with torch.no_grad():
        encoder_out = model.encoder.forward_torchscript({"src_tokens": sources, "src_lengths": sources.ne(1).sum(1)})
        order = torch.tensor([2, 0, 1])
        tokens = target_prefix(3, 5)
        state: dict[str, Any] = {}
        for count in (1, 2):
            model.decoder(tokens[:, :count], encoder_out=encoder_out, incremental_state=state)
        memories = [memory for memory in state.values() if isinstance(memory, Memory)]
        assert memories and all(memory.lengths is not None for memory in memories)
        for memory in memories:
            after = memory.reorder(order)
            assert torch.equal(after.lengths, memory.lengths.index_select(0, order))  # type: ignore[arg-type, union-attr]

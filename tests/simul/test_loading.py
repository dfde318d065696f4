"""Checkpoints of tiny untrained models, from the file to the text."""

from __future__ import annotations

import runpy
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import yaml

from leapformer_fairseq import PLUGIN_DIR
from leapformer_fairseq.runtime.simul.policy import POLICIES, PolicyOptions
from leapformer_fairseq.runtime.simul.stream import DecodingOptions, TranslationStream
from leapformer_fairseq.simul.engine import IncrementalEngine, RecomputeEngine
from leapformer_fairseq.simul.loading import load_system, resolve_policy, with_policy
from leapformer_fairseq.simul.system import TranslationSystem
from leapformer_fairseq.support.errors import LeapformerError
from tests.covering import in_turn
from tests.scripted import policy_of
from tests.untrained import save_checkpoint

PLAN = ["--encoder-self-attention", "leap", "--decoder-self-attention", "leap", "--decoder-cross-attention", "leap"]


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory, spm_model: Path, symbols: list[str]) -> Path:
    root = tmp_path_factory.mktemp("data")
    shutil.copy(spm_model, root / "spm.model")
    (root / "dict.txt").write_text("".join(f"{symbol} 1\n" for symbol in symbols[4:]), encoding="utf-8")
    np.savez(root / "gcmvn.npz", mean=np.full(80, 8.0), std=np.full(80, 3.0))
    write_config(root)
    return root


def write_config(root: Path, name: str = "config.yaml", **changes: Any) -> str:
    config = {
        "vocab_filename": "dict.txt",
        "bpe_tokenizer": {"bpe": "sentencepiece", "sentencepiece_model": "spm.model"},
        "global_cmvn": {"stats_npz_path": "gcmvn.npz"},
        "transforms": {"*": ["global_cmvn"], "_train": ["global_cmvn", "specaugment"]},
    }
    (root / name).write_text(yaml.safe_dump({**config, **changes}))
    return name


@pytest.fixture(scope="session")
def simulst(tmp_path_factory: pytest.TempPathFactory, data_root: Path) -> Path:
    path = tmp_path_factory.mktemp("simulst") / "checkpoint.pt"
    flags = ["--waitk-lagging", "2-4,offline", "--fixed-pre-decision-ratio", "5"]
    return save_checkpoint(path, data_root, "leapformer_simulst_tiny", *PLAN, *flags)


@pytest.fixture(scope="session")
def s2t(tmp_path_factory: pytest.TempPathFactory, data_root: Path) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("s2t") / "checkpoint.pt", data_root, "leapformer_s2t_tiny", *PLAN)


def translate(system: TranslationSystem, samples: np.ndarray, size: int, **options_: Any) -> list[int]:
    translation = TranslationStream(system, DecodingOptions(max_len_b=25, **options_))
    for start in range(0, len(samples), size):
        translation.push(samples[start : start + size])
        translation.advance(source_finished=start + size >= len(samples))
    return translation.emitter._tokens


def test_the_example_streams_a_recording(simulst, data_root, speech, tmp_path, monkeypatch, capsys) -> None:
    recording = str(tmp_path / "speech.wav")
    soundfile.write(recording, speech(3.0, 1), 16_000)
    arguments = [str(simulst), str(data_root), "config.yaml", recording]
    monkeypatch.setattr(sys, "argv", ["stream.py", *arguments])
    runpy.run_path(str(PLUGIN_DIR.parent / "examples/stream.py"))
    said = capsys.readouterr().out.split()
    whole = TranslationStream(load_system(*arguments[:3], PolicyOptions(k=3)), DecodingOptions())
    whole.push(soundfile.read(recording, dtype="float32")[0])
    whole.advance(source_finished=True)
    assert said and said == whole.flush(final=True).split()


def test_trained_values_are_the_default(simulst: Path, data_root: Path) -> None:
    system = load_system(simulst, data_root)
    assert (system.policy.k, system.step_frames, system.eos) == (4, 20, 2)
    assert not system.model.training
    np.testing.assert_array_equal(system.cmvn.mean, np.full(80, 8.0))


def test_values_of_the_command_line_win(simulst: Path, data_root: Path) -> None:
    system = load_system(simulst, data_root, policy=PolicyOptions(k=7), pre_decision_ratio=2)
    assert (system.policy.k, system.step_frames) == (7, 8)


@pytest.mark.parametrize(
    "policy", [PolicyOptions(k=1), PolicyOptions(k=7), PolicyOptions("alignatt", align_frames=2)], ids=str
)
def test_a_model_serves_other_policies_with_the_same_weights(
    simulst: Path, data_root: Path, speech, policy: PolicyOptions
) -> None:
    loaded, expected = load_system(simulst, data_root), load_system(simulst, data_root, policy=policy)
    system = with_policy(loaded, policy)
    assert system.policy == expected.policy and system.step_frames == expected.step_frames == loaded.step_frames
    samples = speech(1.5)
    before = translate(loaded, samples, 640)
    assert translate(system, samples, 640) == translate(expected, samples, 640) != []
    assert translate(loaded, samples, 640) == before
    weights = [{p.data_ptr() for p in one.model.parameters()} for one in (loaded, system, expected)]
    assert weights[0] == weights[1] and not weights[1] & weights[2]


def test_another_policy_of_a_model_is_checked(s2t: Path, data_root: Path) -> None:
    system = load_system(s2t, data_root, policy=PolicyOptions("offline"), pre_decision_ratio=7)
    with pytest.raises(LeapformerError, match="--waitk-lagging"):
        with_policy(system, PolicyOptions())
    with pytest.raises(LeapformerError, match="--pre-decision-ratio is 0"):
        with_policy(system, PolicyOptions(k=2), 0)
    with pytest.raises(LeapformerError, match="--align-layer 9"):
        with_policy(system, PolicyOptions("alignatt", align_layer=9))
    assert with_policy(system, PolicyOptions(k=2), 3).step_frames == 12


@pytest.mark.parametrize("early_eos", ["mask", "wait"])
def test_real_model_writes_the_same_at_any_segment_size(simulst, data_root, speech, early_eos: str) -> None:
    system = load_system(simulst, data_root)
    results = [translate(system, speech(1.7), size * 16, early_eos=early_eos) for size in (20, 280, 100_000)]
    assert results[0] == results[1] == results[2] != []


def test_offline_model_with_test_time_wait_k(s2t: Path, data_root: Path, speech) -> None:
    with pytest.raises(LeapformerError, match="--waitk-lagging and --pre-decision-ratio"):
        load_system(s2t, data_root)
    assert translate(load_system(s2t, data_root, policy=PolicyOptions(k=2), pre_decision_ratio=7), speech(1.0), 640)


def test_streaming_states_give_the_parallel_forward(simulst: Path, data_root: Path) -> None:
    """Token by token with kept states, or all at once as in training: the same logits of the same source."""
    system = load_system(simulst, data_root, policy=PolicyOptions(k=3), pre_decision_ratio=5)
    frames, tokens = torch.randn(140, 80), [2, 10, 11, 12, 13, 14]
    engine = RecomputeEngine(system.model, tokens[0])
    engine.feed(frames.numpy())
    streamed = [engine.step()]
    for token in tokens[1:]:
        engine.commit(token)
        streamed.append(engine.step())
    system.model.set_lagging(None)  # the trained one must not hide source that the policy has handed out
    with torch.no_grad():
        whole, _ = system.model(frames[None], torch.tensor([140]), torch.tensor([tokens]))
    torch.testing.assert_close(torch.stack(streamed), whole[0], rtol=1e-4, atol=1e-4)


def test_source_is_rebuilt_after_new_frames(simulst: Path, data_root: Path) -> None:
    """Feeding in two parts, with a token in between, leaves nothing of the older encoder output behind."""
    system = load_system(simulst, data_root)
    frames = torch.randn(80, 80)
    engine = RecomputeEngine(system.model, 2)
    engine.feed(frames[:40].numpy())
    engine.step()
    snapshot = engine.snapshot()
    engine.commit(9)
    engine.feed(frames[40:].numpy())
    late = engine.step()
    engine.restore(snapshot)
    engine.commit(9)
    torch.testing.assert_close(engine.step(), late)


# -- streaming encoders -------------------------------------------------------------------------------------
ARRIVING = {
    "causal": ["--encoder-causal"],
    "chunks": ["--encoder-chunk-ms", "200"],
    "ahead": ["--encoder-chunk-ms", "120", "--encoder-right-context-ms", "80"],
    "longer-than-a-step": ["--encoder-chunk-ms", "480"],
}


@pytest.fixture(scope="session")
def arriving_as(tmp_path_factory: pytest.TempPathFactory, data_root: Path) -> Callable[[str], Path]:
    """Checkpoints by the encoders they have."""

    @cache
    def make(encoder: str) -> Path:
        path = tmp_path_factory.mktemp(encoder) / "checkpoint.pt"
        flags = ["--waitk-lagging", "2", "--fixed-pre-decision-ratio", "5", *ARRIVING[encoder]]
        return save_checkpoint(path, data_root, "leapformer_simulst_tiny", *PLAN, *flags)

    return make


@pytest.fixture(params=ARRIVING)
def arriving(request, arriving_as) -> Path:
    return arriving_as(request.param)


def test_the_checkpoint_says_which_engine_it_needs(arriving: Path, simulst: Path, data_root: Path) -> None:
    for path, expected in ((arriving, IncrementalEngine), (simulst, RecomputeEngine)):
        stream = TranslationStream(load_system(path, data_root), DecodingOptions())
        assert type(stream.engine) is expected


@in_turn(policy=[*POLICIES], encoder=[*ARRIVING])
def test_every_policy_writes_the_same_at_any_segment_size(
    arriving_as, data_root, speech, policy: str, encoder: str
) -> None:
    system = load_system(arriving_as(encoder), data_root, policy=policy_of(policy, align_frames=2))
    results = [translate(system, speech(1.7), size * 16) for size in (20, 280, 100_000)]
    assert results[0] == results[1] == results[2] != []


@pytest.mark.parametrize("early_eos", ["mask", "wait"])
def test_encoding_once_writes_what_encoding_again_writes(arriving, data_root, speech, early_eos: str) -> None:
    """With a chunk that ends with each step. Otherwise the states of the unfinished chunk change later."""
    system = load_system(arriving, data_root, engine="incremental")
    tokens = translate(system, speech(2.1), 640, early_eos=early_eos)
    chunks = system.model.encoder.chunks
    if 5 % chunks.size == 0 and not chunks.ahead:
        again = load_system(arriving, data_root, engine="recompute")
        assert tokens == translate(again, speech(2.1), 640, early_eos=early_eos)
    assert tokens


def test_streaming_gives_the_logits_of_training(arriving: Path, data_root: Path, speech) -> None:
    """One pass over the whole utterance under wait-k, as in training: the same logits, token by token."""
    system, logits = load_system(arriving, data_root), []
    stream = TranslationStream(system, DecodingOptions(max_len_b=25))
    step = stream.engine.step
    stream.engine.step = lambda *args: logits.append(step(*args)) or logits[-1].clone()
    frames = []
    feed = stream.engine.feed
    stream.engine.feed = lambda new: (frames.append(new), feed(new))
    samples = speech(2.1)
    for start in range(0, len(samples), 640):
        stream.push(samples[start : start + 640])
        stream.advance(source_finished=start + 640 >= len(samples))
    tokens, whole = stream.emitter._tokens, torch.from_numpy(np.concatenate(frames))
    system.model.set_lagging(2)
    with torch.no_grad():
        expected, _ = system.model(whole[None], torch.tensor([len(whole)]), torch.tensor([[2, *tokens]]))
    torch.testing.assert_close(torch.stack(logits), expected[0][: len(logits)], rtol=1e-4, atol=1e-4)


def test_each_frame_is_encoded_once(arriving: Path, data_root: Path, speech) -> None:
    system, seen = load_system(arriving, data_root), []
    convolve = system.model.encoder.convolve
    system.model.encoder.convolve = lambda frames, lengths: seen.append(frames.shape[1]) or convolve(frames, lengths)
    stream = TranslationStream(system, DecodingOptions(max_len_b=25))
    stream.push(speech(2.1))
    assert stream.advance(source_finished=True)
    context = 4 * (len(seen) - 1)
    assert sum(seen) - context == stream.engine.n_frames and len(seen) > 3


def test_missing_files_are_named(simulst: Path, data_root: Path, tmp_path: Path) -> None:
    with pytest.raises(LeapformerError, match="--checkpoint"):
        load_system(tmp_path / "none.pt", data_root)
    with pytest.raises(LeapformerError, match="--config-yaml"):
        load_system(simulst, data_root, "none.yaml")


def test_other_architectures_are_named(tmp_path: Path, data_root: Path) -> None:
    path = save_checkpoint(tmp_path / "c.pt", data_root, "s2t_berard")
    with pytest.raises(LeapformerError, match="'s2t_berard'.*leapformer_simulst"):
        load_system(path, data_root)


def test_a_model_of_fairseqs_own_translates_live(tmp_path: Path, data_root: Path, speech) -> None:
    """Its encoder, of whole utterances, is rerun; what is written does not depend on how the audio was cut."""
    path = save_checkpoint(tmp_path / "c.pt", data_root, "s2t_transformer_xs", "--encoder-layers", "1", scaled={2: 2.0})
    system = load_system(path, data_root, policy=PolicyOptions("local-agreement"), pre_decision_ratio=10)
    samples = speech(1.5)
    found = translate(system, samples, 640)
    assert len(found) > 1 and found == translate(system, samples, 1000)


def test_a_model_that_predicts_lengths_is_refused(tmp_path: Path, data_root: Path) -> None:
    flags = ["--length-predictor", "ratio", "--length-ratio", "0.5"]
    path = save_checkpoint(tmp_path / "checkpoint.pt", data_root, "leapformer_s2t_tiny", *PLAN, *flags)
    with pytest.raises(LeapformerError, match="predicts the target's length from the whole source"):
        load_system(path, data_root, "config.yaml", PolicyOptions(k=2), 5)


def test_a_model_that_was_told_lengths_is_refused_live(tmp_path: Path, data_root: Path) -> None:
    """Table 5 of the LeaPformer paper has cosFormer with true lengths: in training and analysis, not live."""
    plan = ["--decoder-self-attention", "cosformer", "--length-predictor", "oracle"]
    path = save_checkpoint(tmp_path / "checkpoint.pt", data_root, "leapformer_simulst_tiny", *plan)
    with pytest.raises(LeapformerError, match="true length of its target .*oracle.*is unknown during translation"):
        load_system(path, data_root)


def test_file_that_is_no_checkpoint(tmp_path: Path, data_root: Path) -> None:
    (tmp_path / "c.pt").write_bytes(b"nonsense")
    with pytest.raises(LeapformerError, match="cannot be read as a fairseq checkpoint") as error:
        load_system(tmp_path / "c.pt", data_root)
    assert "\n" not in str(error.value)
    torch.save({"weights": 1}, tmp_path / "c.pt")
    with pytest.raises(LeapformerError):
        load_system(tmp_path / "c.pt", data_root)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transforms": {"*": ["utterance_cmvn"]}}, "utterance_cmvn"),
        ({"global_cmvn": {"stats_npz_path": "none.npz"}}, "no CMVN statistics"),
        ({"global_cmvn": {"stats_npz_path": "dict.txt"}}, "no npz file"),
        ({"bpe_tokenizer": {"bpe": "gpt2"}}, "'gpt2'"),
        ({"bpe_tokenizer": {"bpe": "sentencepiece", "sentencepiece_model": "none"}}, "no sentencepiece model"),
        ({"prepend_tgt_lang_tag": True}, "prepend_tgt_lang_tag"),
    ],
)
def test_data_configs_that_cannot_be_streamed(simulst, data_root, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(LeapformerError, match=message):
        load_system(simulst, data_root, write_config(data_root, "other.yaml", **changes))


def test_no_cmvn_when_training_had_none(simulst: Path, data_root: Path) -> None:
    assert load_system(simulst, data_root, write_config(data_root, "plain.yaml", transforms={})).cmvn is None


@pytest.mark.parametrize("ratio", [0, -3])
def test_a_ratio_below_one(ratio: int) -> None:
    with pytest.raises(LeapformerError, match="at least 1"):
        resolve_policy(SimpleNamespace(lagging=3, pre_decision_ratio=7), PolicyOptions(), ratio)


@pytest.mark.parametrize("layer", [3, 0, -3])
def test_a_layer_that_is_not_there(s2t: Path, data_root: Path, layer: int) -> None:
    with pytest.raises(LeapformerError, match=f"--align-layer {layer}: the decoder has the layers 1 to 2"):
        load_system(s2t, data_root, policy=PolicyOptions("alignatt", align_layer=layer), pre_decision_ratio=7)


def test_cross_attention_that_reads_all_at_once_is_refused_where_speech_arrives(tmp_path, data_root: Path) -> None:
    plan = ("--decoder-cross-attention", "abc-cluster", "--encoder-causal", "--waitk-lagging", "offline")
    checkpoint = save_checkpoint(tmp_path / "cluster.pt", data_root, "leapformer_simulst_tiny", *plan)
    numbers = {"pre_decision_ratio": 7}
    with pytest.raises(LeapformerError, match="layer 1: abc-cluster .*reads a source at once.*recompute"):
        load_system(checkpoint, data_root, policy=PolicyOptions(k=2), **numbers)
    load_system(checkpoint, data_root, policy=PolicyOptions("offline"), **numbers)
    load_system(checkpoint, data_root, policy=PolicyOptions(k=2), engine="recompute", **numbers)


def test_words_written_by_the_packed_sequence_of_a_part_are_refused_where_speech_arrives(tmp_path, data_root) -> None:
    plan = ("--encoder-self-attention", "luna", "--decoder-self-attention", "luna", "--waitk-lagging", "offline")
    numbers = {"pre_decision_ratio": 7}
    checkpoint = save_checkpoint(tmp_path / "luna.pt", data_root, "leapformer_simulst_tiny", *plan)
    with pytest.raises(LeapformerError, match="layer 1: luna .*still arriving; .*--luna-packed lear"):
        load_system(checkpoint, data_root, policy=PolicyOptions(k=2), **numbers)
    load_system(checkpoint, data_root, policy=PolicyOptions("offline"), **numbers)
    learned = save_checkpoint(
        tmp_path / "learned.pt", data_root, "leapformer_simulst_tiny", *plan, "--luna-packed", "learned"
    )
    load_system(learned, data_root, policy=PolicyOptions(k=2), **numbers)


def test_an_encoder_of_whole_utterances_has_no_incremental_engine(s2t: Path, data_root: Path) -> None:
    with pytest.raises(LeapformerError, match="--engine incremental: .*train with --encoder-causal"):
        load_system(s2t, data_root, policy=PolicyOptions(k=2), pre_decision_ratio=7, engine="incremental")

"""Exported speech models write what their checkpoints write, with every policy, however the audio is cut."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch

from leapformer_fairseq.attention import MECHANISMS
from leapformer_fairseq.attention.ops import dispatch
from leapformer_fairseq.cli.main import main
from leapformer_fairseq.export.check import compared_speech
from leapformer_fairseq.export.graphs import DecoderStep
from leapformer_fairseq.export.states import keys_of, tensors_of
from leapformer_fairseq.export.streaming import Listening, Writing
from leapformer_fairseq.export.write import export_speech, quantize
from leapformer_fairseq.models.averaging import describe_checkpoint
from leapformer_fairseq.runtime.folder import CROSS, LISTEN, SELF, WEIGHTS, Folder
from leapformer_fairseq.runtime.simul.exported import ExportedSystem
from leapformer_fairseq.runtime.simul.options import ENGINES as CHOICES
from leapformer_fairseq.runtime.simul.policy import PolicyOptions
from leapformer_fairseq.runtime.simul.segments import SegmentOptions
from leapformer_fairseq.runtime.simul.session import Session
from leapformer_fairseq.runtime.simul.stream import DecodingOptions, System, TranslationStream
from leapformer_fairseq.simul.engine import ENGINES, IncrementalEngine
from leapformer_fairseq.simul.live import open_system
from leapformer_fairseq.simul.system import TranslationSystem
from leapformer_fairseq.support.errors import LeapformerError
from tests.covering import in_turn
from tests.exported import AHEAD, ONE_LAYER, speech_model, speech_system
from tests.exported import speech as exported_speech

CAUSAL, CHUNKS = {"encoder_causal": True}, {"encoder_chunk_ms": 240}
OPTIONS = DecodingOptions(max_len_b=20)
POLICIES = [
    PolicyOptions(k=2),
    PolicyOptions(k=4, catch_up=2.0),
    PolicyOptions("hold-n", hold=2),
    PolicyOptions("local-agreement"),
    PolicyOptions("offline"),
    PolicyOptions("alignatt", align_frames=3),
    PolicyOptions("edatt", align_layer=1),
]


def served() -> list[str]:
    """Mechanisms for all blocks of a model with a streaming encoder, whose state graphs can hold."""
    found = []
    for name, kind in MECHANISMS.items():
        about = kind.capabilities
        where = {"encoder-self", "decoder-self", "decoder-cross"} <= set(about.blocks)
        if where and about.incremental and about.carry_width is None and kind.fits_graphs():
            try:
                speech_model(name, **CHUNKS)
            except LeapformerError:  # it does not stream
                continue
            found.append(name)
    return found


@in_turn(plan=[*served(), "kda-conv", "simple-gla-conv"], encoder=[CAUSAL, CHUNKS, AHEAD])
def test_parts_with_explicit_states_equal_the_model(plan, encoder):
    """Rows of speech chunk by chunk, the last one shorter, and tokens that see more and more of them.

    Attention weights, too, where graphs have them.
    """
    model = speech_model(plan, **ONE_LAYER, **encoder).eval().requires_grad_(False)
    weighs = not model.decoder.layers[0].encoder_attn.mechanism.capabilities.needs_inputs
    keys = keys_of(model.decoder, 1) if weighs else None
    listening, writing, step = Listening(model.encoder), Writing(model.decoder, keys), DecoderStep(model.decoder, keys)
    frames, size = torch.randn(24 * 2 + 9, 80).double(), 4 * listening.rows
    whole = 4 * model.encoder.chunks.tokens  # with the look-ahead
    expected = IncrementalEngine(model, 2)
    expected.feed(frames.float().numpy())
    expected.finish()
    heard, read = (tensors_of(one.empty(1) for one in part.blocks) for part in (listening, writing))
    read += [torch.zeros(1, *shape).double() for shape in (keys.shapes if keys else {}).values()]
    own, real = tensors_of(one.empty(1) for one in step.layers.blocks[SELF]), torch.zeros(0, dtype=torch.bool)
    rows, before = [], torch.full((4, 80), torch.pi).double()  # before the first chunk, any numbers
    for start in range(0, len(frames), size):
        chunk, known = frames[start : start + size], frames[start : start + whole]
        padded = torch.full((1, 4 + whole, 80), torch.pi).double()
        padded[0, :4], padded[0, 4 : 4 + len(known)] = before, known
        with torch.enable_grad(), dispatch.override(pairs=0, pairs_per_token=0):  # as in the graph
            count, place = torch.tensor([len(known)]), torch.tensor([len(rows)])
            found, heard = listening(padded, torch.tensor([4 if rows else 0]), count, place, heard)
        rows += found[: -(-len(chunk) // 4)].unbind()
        before = chunk[-4:]
    tokens, seen = [2], 0
    for visible in (6, 9, 9, 13, 15):
        while seen < visible:
            new = torch.stack(rows[seen : min(seen + 3, visible)])
            padded = torch.cat([new, new.new_full((3 - len(new), *new.shape[1:]), torch.pi)])
            with torch.enable_grad():
                read = writing(padded, torch.tensor([len(new)]), torch.tensor([seen]), read)
            seen += len(new)
            real = torch.cat([real, torch.arange(3) < len(new)])
        with torch.enable_grad():
            last, place = torch.tensor([[tokens[-1]]]), torch.tensor([[len(tokens)]])
            log_probs, *weights, own = step(last, place, torch.tensor([[0]]), own, read)
        logits = expected.step(visible, layer=0)  # in float32
        torch.testing.assert_close(log_probs[0, 0].float(), logits.log_softmax(-1), rtol=0, atol=2e-6)
        assert len(weights) == weighs
        for one in weights:
            found, wanted = one[0, 0, real].float().numpy(), expected.attention
            np.testing.assert_allclose(found, wanted, atol=2e-6)
        tokens.append(5)
        expected.commit(5)


@pytest.fixture(scope="module")
def exported() -> tuple[TranslationSystem, Folder]:
    """A system and its folder."""
    return exported_speech()


def written(system: System, samples: np.ndarray, size: int) -> list[list[int]]:
    """The tokens after each piece of audio."""
    stream, found = TranslationStream(system, OPTIONS), []
    for start in range(0, len(samples), size):
        stream.push(samples[start : start + size])
        stream.advance(start + size >= len(samples))
        found.append(stream.engine.tokens)
    return found


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_every_policy_writes_the_same_at_the_same_time(exported, speech, policy):
    system, folder = exported
    other = ExportedSystem.load(folder.path, policy)
    for seconds, size in ((1.87, 4000), (1.1, 1000), (0.9, 16_000), (0.01, 100)):
        expected = written(replace(system, policy=policy.of_layers(1)), speech(seconds, 3), size)
        assert written(other, speech(seconds, 3), size) == expected
        assert expected[-1] or seconds < 0.1


@pytest.mark.full
@pytest.mark.parametrize(
    ("plan", "options"),
    [
        ("leap", {**CHUNKS, "encoder_layers": 2, "decoder_layers": 2}),
        ("gated-delta", CAUSAL),
        ("gated-delta", AHEAD),
        ("kda-conv", AHEAD),
        ("simple-gla-conv", CAUSAL),
        ("softmax", {**AHEAD, "encoder_past_ms": 320}),
        ("entmax", CAUSAL),
    ],
)
def test_other_mechanisms_and_encoders(speech, tmp_path, plan, options):
    system = speech_system(plan, **{**ONE_LAYER, **options})
    folder = export_speech(system, tmp_path, "signature", {})
    other = ExportedSystem.load(folder.path, PolicyOptions(k=2))
    assert written(other, speech(2.1, 3), 4000) == written(system, speech(2.1, 3), 4000)
    found = compared_speech(system, folder, 3)
    assert found.equal == found.sources == 3 and found.error < 1e-4


def test_the_comparison_can_fail(exported):
    system, folder = exported
    other = speech_system("gated-relu", **ONE_LAYER, **AHEAD)
    other.model.decoder.layers[0].encoder_attn.v_proj.weight.data.mul_(2)
    found = compared_speech(other, folder, 2)
    assert found.equal < 2 or found.error > 0.01
    assert compared_speech(system, folder, 2).error < 1e-4


def test_weights_of_8_bits(exported, tmp_path):
    """Smaller weights with slightly other scores."""
    folder = replace(exported[1], path=tmp_path / "small")
    shutil.copytree(exported[1].path, folder.path)
    quantize(folder)
    small, large = ((one.path / WEIGHTS).stat().st_size for one in (folder, exported[1]))
    assert small < 0.4 * large
    assert 1e-4 < compared_speech(exported[0], folder, 3).error < 0.3


def test_sessions_forks_and_another_k(exported, speech):
    """Segments that end at pauses; k that changes; drafts."""
    system, folder = exported
    samples = np.concatenate([speech(1.0), np.zeros(8000, np.float32), speech(0.8, 1)])
    events = []
    for one in (system, ExportedSystem.load(folder.path, PolicyOptions(k=2))):
        session = Session(one, OPTIONS, SegmentOptions("pause", pause_ms=200, min_seconds=0.5), drafts=True)
        found = list(session.push(samples[:9000]))
        session.use_lagging(1)
        events.append([*found, *session.push(samples[9000:]), *session.finish()])
    assert events[0] == events[1] and sum(event.ends for event in events[0]) == 2
    stream = TranslationStream(ExportedSystem.load(folder.path), OPTIONS)
    stream.push(speech(1.0))
    stream.advance(False)
    other = stream.fork()
    for one in (other, stream):
        one.push(speech(0.7, 1))
        one.advance(True)
    assert other.engine.tokens == stream.engine.tokens


def test_what_a_token_translates_is_told_alike(exported, speech):
    """By attention weights."""
    system, folder = exported
    policy, found = PolicyOptions("hold-n", hold=1, align_layer=1), list[list[int]]()
    for one in (replace(system, policy=policy), ExportedSystem.load(folder.path, policy)):
        stream = TranslationStream(one, OPTIONS, aligns=True)
        stream.push(speech(1.9, 3))
        stream.advance(True)
        found.append(stream.aligned)
    assert found[0] == found[1] and len(set(found[0])) > 1


def test_old_text_is_forgotten_alike_under_wait_k(exported, speech):
    """Nothing asks for attention weights: the schedule tells what a word is a translation of."""
    system, folder = exported
    options = SegmentOptions("seconds", history="window", history_words=2)
    events = []
    for one in (system, ExportedSystem.load(folder.path, PolicyOptions(k=2))):
        session = Session(one, DecodingOptions(max_len_b=200, unit="char"), options)
        found, forgotten = list(session.push(speech(8.0, 5))), session._forgotten
        events.append([*found, *session.finish(), forgotten])
    assert events[0] == events[1] and min(events[0][-1]) > 0


def test_a_simulation_knows_what_the_folder_was_made_of(exported, speech, tmp_path):
    """`leapformer simulate` of the folder: the log of the checkpoint's streams."""
    audio, folder = tmp_path / "audio.wav", tmp_path / "folder"
    soundfile.write(audio, speech(1.8, 3), 16_000)
    (tmp_path / "source").write_text(f"{audio}\n")
    (tmp_path / "target").write_text("a reference\n")
    shutil.copytree(exported[1].path, folder)
    replace(exported[1], path=folder, origin={"updates": 7}).write()
    assert describe_checkpoint(folder) == {"checkpoint": "folder", "updates": 7}
    options = ["--source", str(tmp_path / "source"), "--target", str(tmp_path / "target"), "--max-len-b", "20"]
    assert main(["simulate", "--checkpoint", str(folder), "--out", str(tmp_path / "out"), *options]) == 0
    log = json.loads((tmp_path / "out" / "instances.log").read_text())
    stream = TranslationStream(exported[0], OPTIONS)
    stream.push(soundfile.read(audio, dtype="float32")[0])
    stream.advance(True)
    assert log["prediction"].split() == stream.flush(True).split()
    assert json.loads((tmp_path / "out" / "scores.json").read_text())["model"]["updates"] == 7


def test_engines_can_be_chosen_by_all_their_names():
    assert ("auto", *ENGINES) == CHOICES


def test_a_recording_without_torch(exported, speech, tmp_path, capsys):
    """`python -m leapformer_fairseq.runtime` is `leapformer stream` of the folder."""
    folder, audio = str(exported[1].path), tmp_path / "audio.wav"
    soundfile.write(audio, speech(2.4, 3), 16_000)
    options = [str(audio), "--max-len-b", "20", "--json", "--waitk-lagging", "1"]
    code = (
        "import sys\nfor name in ('torch', 'fairseq', 'onnx'): sys.modules[name] = None\n"
        f"from leapformer_fairseq.runtime.__main__ import main\nsys.exit(main({[folder, *options]!r}))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env=dict(os.environ)
    )
    assert run.returncode == 0, run.stderr
    assert main(["stream", "--checkpoint", folder, *options]) == 0
    texts = [[line for line in out.splitlines() if '"text"' in line] for out in (run.stdout, capsys.readouterr().out)]
    assert texts[0] and texts[0] == texts[1]


@pytest.mark.parametrize(
    ("plan", "options", "reason"),
    [
        ("leap", {}, "sees whole utterances; export one trained with --encoder-causal"),
    ],
)
def test_models_that_cannot_be_exported_are_refused(tmp_path, plan, options, reason):
    with pytest.raises(LeapformerError, match=reason):
        export_speech(speech_system(plan, **options), tmp_path, "signature", {})


def test_options_that_an_exported_model_cannot_follow_are_refused(exported, speech, tmp_path, capsys):
    with pytest.raises(LeapformerError, match="--align-layer 2: the decoder has the layers 1 to 1"):
        ExportedSystem.load(exported[1].path, PolicyOptions("alignatt", align_layer=2))
    folder = shutil.copytree(exported[1].path, tmp_path / "unaligned")
    replace(exported[1], path=folder, alignments=None).write()
    with pytest.raises(LeapformerError, match="without attention weights; export it with --alignments 1"):
        ExportedSystem.load(folder, PolicyOptions("alignatt"))
    with pytest.raises(LeapformerError, match="--pre-decision-ratio is 0"):
        ExportedSystem.load(folder, pre_decision_ratio=0)
    hold = ExportedSystem.load(folder, PolicyOptions("hold-n", hold=1))
    session = Session(hold, OPTIONS, SegmentOptions("seconds", history="window"))
    with pytest.raises(LeapformerError, match="without attention weights; export it with --alignments 1"):
        list(session.push(speech(2.0)))
    given = {
        "policy": "wait-k",
        "waitk_lagging": None,
        "catch_up": 1.0,
        "hold": 3,
        "agree": 2,
        "align_frames": 4,
        "policy_file": [],
    }
    args = SimpleNamespace(
        checkpoint=str(folder), data_root=None, pre_decision_ratio=None, engine="recompute", align_layer=-1,
        num_threads=1, **given,
    )  # fmt: skip
    with pytest.raises(LeapformerError, match="--engine recompute has no meaning for an exported model"):
        open_system(args)
    args.engine = "auto"
    with pytest.raises(LeapformerError, match="--device cuda has no meaning"):
        open_system(args, "cuda")
    args.num_threads = 0
    with pytest.raises(LeapformerError, match="--num-threads is 0"):
        open_system(args)
    audio = tmp_path / "audio.wav"
    soundfile.write(audio, speech(0.5), 16_000)
    assert main(["stream", "--checkpoint", str(folder), "--carry", "encoder", str(audio)]) == 2
    assert "--carry encoder: exported models begin anew with each segment" in capsys.readouterr().err
    assert main(["stream", "--checkpoint", "x.pt", str(audio)]) == 2
    assert "--data-root is missing; give the folder" in capsys.readouterr().err
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    (damaged / LISTEN).unlink()
    assert main(["stream", "--checkpoint", str(damaged), str(audio)]) == 2
    assert f"has no {LISTEN}; export" in capsys.readouterr().err
    assert CROSS in Folder.read(folder).states

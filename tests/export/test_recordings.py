"""Whole recordings: what fairseq makes of them, by a folder that needs neither PyTorch nor fairseq."""

from __future__ import annotations

import itertools
import math
import os
import re
import shutil
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import yaml
from fairseq import checkpoint_utils
from fairseq.data.audio.data_cfg import S2TDataConfig
from fairseq.data.audio.feature_transforms.utterance_cmvn import UtteranceCMVN
from sentencepiece import SentencePieceTrainer

from leapformer_fairseq.cli.main import main as leapformer
from leapformer_fairseq.export.check import compared_recordings
from leapformer_fairseq.export.recordings import recordings_of, subwords_in
from leapformer_fairseq.export.subwords import PLAIN, Subwords
from leapformer_fairseq.runtime.__main__ import main
from leapformer_fairseq.runtime.beam import Search
from leapformer_fairseq.runtime.cmvn import Cmvn, by_itself
from leapformer_fairseq.runtime.folder import Folder
from leapformer_fairseq.runtime.recordings import SpeechToText
from leapformer_fairseq.support.errors import LeapformerError

from ..exported import recordings, translation
from ..spoken import GLOBAL, OWN, samples, spoken
from ..untrained import save_checkpoint

BEAM = {"beam": 4, "max_len_a": 0.1, "max_len_b": 3}


def in_fairseq(config: str) -> tuple[Any, Any]:
    """The model that fairseq makes of the checkpoint, and its task."""
    overrides = {"config_yaml": config}
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(recordings().checkpoint)], overrides)
    assert type(model).__module__.startswith("fairseq.")
    return model.eval(), task


def wavs() -> list[str]:
    return sorted(map(str, spoken().glob("*.wav")))[:6]


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> dict[str, SpeechToText]:
    """The model of recordings that are normalised by themselves, and as if it were one of global statistics."""
    own = Folder.read(recordings().exported)
    path = shutil.copytree(own.path, tmp_path_factory.mktemp("recordings") / "global")
    cmvn = Cmvn.load(spoken() / "gcmvn.npz")
    about = replace(own.recordings, mean=cmvn.mean.tolist(), std=cmvn.std.tolist(), own_mean=False, own_std=False)
    replace(own, path=path, recordings=about).write()
    return {OWN: SpeechToText(own.path), GLOBAL: SpeechToText(path)}


@pytest.mark.parametrize("config", [OWN, GLOBAL])
def test_texts_and_scores_are_those_of_fairseq(exported, config):
    """From the recordings on, by the generator of `fairseq-generate`."""
    (model, task), found = in_fairseq(config), list[str]()
    generator = task.build_generator([model], Namespace(**BEAM))
    data = task.build_dataset_for_inference(wavs(), [1] * len(wavs()))
    for number, recording in enumerate(wavs()):
        (theirs,) = generator.generate([model], data.collater([data[number]]))
        ours = exported[config].texts(recording, nbest=4, search=Search(**BEAM))
        words = [task.target_dictionary.string(one["tokens"]) for one in theirs]
        assert [" ".join(one.pieces) for one in ours] == words
        assert all(abs(one.score - float(other["score"])) < 1e-4 for one, other in zip(ours, theirs, strict=True))
        found += words
    assert len(set(found)) > 5


def test_the_comparison_can_fail(exported):
    model, task = in_fairseq(OWN)
    folder = exported[OWN].folder
    found = compared_recordings(model, task, folder, 3)
    assert found.equal == found.sources == 3 and found.error < 1e-4
    _, other = in_fairseq(GLOBAL)
    assert compared_recordings(model, other, folder, 3).error > 1e-3, "other frames"
    model.encoder.subsample.conv_layers[0].weight.data.mul_(1.2)
    assert compared_recordings(model, task, folder, 3).error > 1e-3, "other weights"


@pytest.mark.parametrize(("mean", "std"), itertools.product([True, False], repeat=2))
def test_a_recording_is_normalised_by_itself_as_in_fairseq(mean, std):
    frames = np.random.default_rng(1).normal(3, 2, (50, 7)).astype(np.float32)
    frames[:, 3] = 5  # no variance
    assert np.array_equal(by_itself(frames, mean, std), UtteranceCMVN(mean, std)(frames))


def said(capsys) -> tuple[list[str], str]:
    captured = capsys.readouterr()
    return captured.out.split("\n")[:-1], captured.err


def test_the_command(exported, tmp_path, capsys):
    """A line for each recording; one that cannot be read costs only itself."""
    folder, (one, other, *_) = str(exported[OWN].folder.path), wavs()
    assert main([folder, one, other]) == 0
    (first, second), err = said(capsys)
    assert not err and [text.text for text in exported[OWN].texts(one)] == [first]
    soundfile.write(tmp_path / "short.wav", samples(0.02, 1), 16_000)
    soundfile.write(tmp_path / "other.wav", samples(0.5, 1), 8_000)
    long = math.ceil(exported[OWN].folder.max_source / 100)
    soundfile.write(tmp_path / "long.wav", np.zeros(16_000 * (long + 1), np.int16), 16_000)
    unread = [str(tmp_path / name) for name in ("none.wav", "other.wav", "long.wav")]
    assert main([folder, str(tmp_path / "short.wav"), *unread, other]) == 1
    lines, err = said(capsys)
    assert lines == ["", "", "", "", second] and err.count("its text is empty") == err.count("\n") == 3
    assert f"has {long + 1}.0 s, and the model reads {long} s; divide it" in err
    assert main([folder, "--nbest", "2", "--scores", "--beam", "2", one]) == 0
    (line, _), _ = said(capsys)
    float(line.partition("\t")[0])
    assert main([folder, "--nbest", "3", "--beam", "2", one]) == 2 and main([folder]) == 2


def test_the_example_of_the_page(exported, tmp_path, monkeypatch, capsys):
    page = Path("docs/export.md").read_text(encoding="utf-8")
    (example,) = [code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "SpeechToText" in code]
    (tmp_path / "exported_s2t").symlink_to(exported[OWN].folder.path)
    shutil.copy(wavs()[0], tmp_path / "one.wav")
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    best = exported[OWN].texts("one.wav")[0]
    assert said(capsys)[0] == f"{best.text} {best.score}".split("\n")


def test_what_is_not_meant_for_a_whole_recording(exported, capsys):
    path = str(exported[OWN].folder.path)
    for command in (["stream", wavs()[0]], ["serve", "--in-browser"]):
        assert leapformer([*command, "--checkpoint", path]) == 2
        assert "reads whole recordings, and not what is still being said; run" in said(capsys)[1]
    with pytest.raises(LeapformerError, match="holds a model for translation; give one of whole recordings"):
        SpeechToText(translation().exported)
    command = ["export", "--path", str(recordings().checkpoint), "--out", path, "--pre-decision-ratio", "3"]
    assert leapformer(command) == 2
    assert "--pre-decision-ratio 3 has no meaning for a model that reads whole recordings" in said(capsys)[1]


def test_subwords_of_another_vocabulary_are_refused(tmp_path, monkeypatch, capsys):
    """fairseq reads a file in the folder where it starts before that of the config yaml."""
    with (tmp_path / "spm.model").open("wb") as model:
        SentencePieceTrainer.train(
            sentence_iterator=iter(["0123 4567 89"] * 9), model_writer=model, vocab_size=14, minloglevel=2
        )
    checkpoint = str(recordings().checkpoint)
    monkeypatch.chdir(tmp_path)
    assert leapformer(["export", "--path", checkpoint, "--out", "out"]) == 2
    message = "sentencepiece_model in the config yaml, spm.model is of another vocabulary: it makes"
    assert message in said(capsys)[1] and not (tmp_path / "out").exists()


def task_with(tmp_path: Path, **changes: Any) -> Any:
    """A task of data whose configuration is another."""
    about = yaml.safe_load((spoken() / GLOBAL).read_text())
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**about, **changes}))
    return Namespace(data_cfg=S2TDataConfig(tmp_path / "config.yaml"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_audio_input": True}, "use_audio_input: the model reads samples"),
        ({"input_channels": 2}, "input_channels: 2"),
        ({"feature_transforms": {"*": ["delta_deltas"]}}, "feature transforms delta_deltas"),
        ({"feature_transforms": {"_eval": [*("utterance_cmvn", "global_cmvn")]}}, "transforms utterance_cmvn, global_"),
        ({"prepend_tgt_lang_tag": True}, "prepend_tgt_lang_tag .* adds tokens"),
        ({"prepend_bos_and_append_tgt_lang_tag": True}, "prepend_bos_and_append_tgt_lang_tag .* adds tokens"),
        ({"eos_token": "<lang:de>"}, "eos_token .* adds tokens"),
        ({"global_cmvn": {"stats_npz_path": "none.npz"}}, "no CMVN statistics at .*none.npz"),
        ({"bpe_tokenizer": {"bpe": "characters"}}, "bpe_tokenizer 'characters' with pre_tokenizer None"),
        ({"pre_tokenizer": {"tokenizer": "nltk"}}, "with pre_tokenizer 'nltk' in the config yaml"),
        ({"bpe_tokenizer": {"bpe": "sentencepiece", "sentencepiece_model": "x"}}, "no sentencepiece_model at x"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_configurations_that_are_refused(changes, message, tmp_path):
    with pytest.raises(LeapformerError, match=message):
        task = task_with(tmp_path, **{"bpe_tokenizer": {"bpe": None}, **changes})
        assert recordings_of(task) and subwords_in(task)


def test_configurations_that_are_read(tmp_path):
    (tmp_path / "codes").write_text("")
    codes = {"bpe": "subword_nmt", "bpe_codes": "codes"}
    moses = {"tokenizer": "moses", "source_lang": "en", "target_lang": "de"}
    task = task_with(tmp_path, bpe_tokenizer=codes, pre_tokenizer=moses, feature_transforms={"_train": ["specaugment"]})
    assert subwords_in(task) == Subwords(None, tmp_path / "codes", ("en", "de"))
    about = recordings_of(task)
    assert (about.mean, about.std, about.own_mean, about.own_std) == (None, None, False, False)
    task = task_with(
        tmp_path,
        bpe_tokenizer={"bpe": None},
        utterance_cmvn={"norm_vars": False},
        feature_transforms={"*": ["utterance_cmvn"]},
    )
    assert subwords_in(task) == PLAIN
    about = recordings_of(task)
    assert (about.own_mean, about.own_std) == (True, False)


def test_a_recording_needs_neither_torch_nor_fairseq(exported):
    folder = str(exported[OWN].folder.path)
    code = (
        "import sys\nfor name in ('torch', 'fairseq', 'onnx'): sys.modules[name] = None\n"
        "from leapformer_fairseq.runtime.__main__ import main\n"
        f"sys.exit(main([{folder!r}, {wavs()[0]!r}]))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env=dict(os.environ)
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.rstrip("\n") == exported[OWN].texts(wavs()[0])[0].text


# ------------------------------------------------------------------------------------------------------- the full tier
OURS = {
    "abc": "leapformer_s2t_mla --encoder-self-attention gated-delta,abc-mlp --decoder-cross-attention abc-cluster",
    "lengths": "leapformer_s2t_tiny --encoder-self-attention cosformer --decoder-cross-attention cosformer "
    "--length-predictor ratio --length-ratio 0.1 --cosformer-length 0",
    "fairseq's": "leapformer_s2t_transformer_xs --encoder-self-attention leap --decoder-cross-attention hedgehog",
}


@pytest.mark.full
@pytest.mark.parametrize("name", OURS)
def test_full_context_models_of_ours(name, tmp_path):
    arch, *plan = OURS[name].split()
    sizes = "--encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 32 --encoder-attention-heads 2 "
    sizes += "--decoder-attention-heads 2 --decoder-embed-dim 32"
    path = save_checkpoint(tmp_path / "model.pt", spoken(), arch, *sizes.split(), *plan, scaled={2: 2.0})
    assert leapformer(["export", "--path", str(path), "--out", str(tmp_path / "out"), "--check", "10"]) == 0


@pytest.mark.full
@pytest.mark.parametrize("config", [OWN, GLOBAL])
def test_what_fairseq_trained_and_generates_without_this_package(config, tmp_path):
    """Its own commands, in processes that know nothing of it. One recording at a time, since it mixes padding in."""
    arch = {OWN: "s2t_transformer_s --conv-kernel-sizes 5,3,3 --layernorm-embedding", GLOBAL: "s2t_transformer_xs"}
    common = [str(spoken()), "--task", "speech_to_text", "--config-yaml", config, "--cpu", "--num-workers", "0"]
    training = (
        f"--arch {arch[config]} --encoder-layers 2 --decoder-layers 1 --encoder-embed-dim 32 --conv-channels 32 "
        "--encoder-ffn-embed-dim 32 --encoder-attention-heads 2 --decoder-attention-heads 2 --optimizer adam --lr 3e-3 "
        f"--max-tokens 400 --max-update 30 --no-epoch-checkpoints --disable-validation --save-dir {tmp_path}"
    )
    generating = (
        f"--gen-subset test --path {tmp_path}/checkpoint_last.pt --beam 5 --nbest 5 --batch-size 1 "
        "--required-batch-size-multiple 1 --max-len-b 20"
    )
    for program, options in (("train", training), ("generate", generating)):
        code = f"from fairseq_cli.{program} import cli_main; cli_main()"
        run = subprocess.run(
            [sys.executable, "-c", code, *common, *options.split()],
            capture_output=True, text=True, timeout=500, cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": "", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},
        )  # fmt: skip
        assert run.returncode == 0, run.stderr[-2000:]
    theirs: dict[int, list[tuple[float, str]]] = {}
    for line in run.stdout.splitlines():
        if line.startswith("H-"):
            number, score, pieces = line.split("\t")
            theirs.setdefault(int(number[2:]), []).append((float(score) * math.log(2), pieces))
    command = ["export", "--path", str(tmp_path / "checkpoint_last.pt"), "--out", str(tmp_path / "out")]
    assert leapformer(command) == 0
    model, search = SpeechToText(tmp_path / "out"), Search(max_len_b=20)
    rows = [line.split("\t") for line in (spoken() / "test.tsv").read_text().splitlines()[1:]]
    assert len(theirs) == len(rows) == 6
    for number, row in enumerate(rows):
        ours = model.texts(Path(row[1]).with_suffix(".wav"), nbest=5, search=search)
        assert [" ".join(one.pieces) for one in ours] == [pieces for _, pieces in theirs[number]]
        assert all(abs(one.score - score) < 1e-4 for one, (score, _) in zip(ours, theirs[number], strict=True))

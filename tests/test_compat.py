"""Every patch of fairseq, from the outside: what failed without it works, and nothing is less protected than before."""

import argparse
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch

from leapformer_fairseq import PLUGIN_DIR, audio, compat
from leapformer_fairseq.errors import LeapformerError

pytest.importorskip("fairseq")
from fairseq import checkpoint_utils, utils  # noqa: E402
from fairseq.data import Dictionary  # noqa: E402
from fairseq.data.audio import audio_utils  # noqa: E402
from fairseq.data.audio.data_cfg import S2TDataConfig  # noqa: E402
from fairseq.data.audio.speech_to_text_dataset import SpeechToTextDatasetCreator  # noqa: E402

PACKAGES_USING_FAIRSEQ = sorted(
    name for name in ("modules", "models", "tasks", "criterions", "agents") if (PLUGIN_DIR / name).is_dir()
)


def run_python(code: str, **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, **kwargs)


def tone(rate: int = audio.SAMPLE_RATE) -> np.ndarray:
    """Half a second of 440 Hz in [-1, 1], rounded so that a 16-bit file holds it exactly."""
    wave = 0.3 * np.sin(2 * np.pi * 440 * np.arange(rate // 2) / rate)
    return (np.round(wave * audio.INT16_SCALE) / audio.INT16_SCALE).astype(np.float32)


def test_second_apply_changes_nothing():
    before = audio_utils.convert_waveform, utils.import_user_module
    assert compat.apply() == compat.apply()
    assert (audio_utils.convert_waveform, utils.import_user_module) == before


def test_patch_that_is_not_needed_is_left_out(monkeypatch):
    def fail() -> None:
        raise AssertionError("mended although not needed")

    patch = compat.Patch("unneeded", "a reason", "no version", needed=lambda: False, mend=fail)
    monkeypatch.setattr(compat, "PATCHES", (patch,))
    monkeypatch.setattr(compat, "_applied", {})
    assert compat.apply() == []


@pytest.mark.parametrize(
    "first", ["leapformer_fairseq", "fairseq", *(f"leapformer_fairseq.{name}" for name in PACKAGES_USING_FAIRSEQ)]
)
def test_any_first_import_mends_and_registers(first):
    code = (
        f"import {first}, leapformer_fairseq, fairseq, sys\n"
        "from fairseq.data.audio import audio_utils; print(audio_utils.convert_waveform.__module__)\n"
        "print(*(name for name in sys.modules if name.startswith('leapformer_fairseq.models.')))"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    mended, registered = done.stdout.split("\n")[:2]
    assert mended == "leapformer_fairseq.compat.data"
    models = {path.stem for path in (PLUGIN_DIR / "models").glob("[!_]*.py")}
    assert {f"leapformer_fairseq.models.{name}" for name in models} <= set(registered.split())


def test_looking_for_fairseq_does_not_lose_the_registration():
    code = (
        "import leapformer_fairseq, importlib.util, sys; importlib.util.find_spec('fairseq')\n"
        "assert 'fairseq' not in sys.modules\n"
        "from fairseq import utils; print(utils.import_user_module.__wrapped__.__module__)"
    )
    assert run_python(code).stdout.strip() == "fairseq.utils"


def test_checkpoint_types_load_with_protection_on(tmp_path):
    path = tmp_path / "checkpoint.pt"
    metrics = {"counts": np.arange(4), "ratio": np.array([0.5], np.float32), "score": np.float64(1.5)}
    torch.save({"args": argparse.Namespace(arch="leapformer_lm"), "metrics": metrics}, path)
    state = torch.load(path, weights_only=True)
    assert state["args"] == argparse.Namespace(arch="leapformer_lm")
    assert {name: value.tolist() for name, value in state["metrics"].items()} == {
        "counts": [0, 1, 2, 3],
        "ratio": [0.5],
        "score": 1.5,
    }


def test_code_in_a_checkpoint_is_refused_by_fairseqs_loader(tmp_path):
    proof = tmp_path / "proof"

    class Malicious:
        def __reduce__(self):
            return os.system, (f"touch {proof}",)

    path = tmp_path / "checkpoint.pt"
    torch.save({"args": argparse.Namespace(), "model": Malicious()}, path)
    with pytest.raises(LeapformerError, match="system") as refused:
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    assert isinstance(refused.value.__cause__, pickle.UnpicklingError)
    assert not proof.exists()


def test_np_compat():
    assert np.zeros(2, dtype=np.compat.long).dtype == np.int64


@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_fairseqs_features_are_ours(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, tone(), audio.SAMPLE_RATE)
    np.testing.assert_array_equal(audio_utils.get_fbank(str(path)), audio.fbank(tone()))


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_resampling_keeps_the_tone_and_the_type(kind):
    wave = kind(tone(48_000)[None])
    converted, rate = audio_utils.convert_waveform(wave, 48_000, to_sample_rate=16_000)
    assert rate == 16_000
    assert type(converted) is type(wave)
    inner = slice(200, -200)  # the filter rings at both ends
    np.testing.assert_allclose(np.asarray(converted)[0, inner], tone(16_000)[inner], atol=2e-3)


def test_mixing_down_and_volume():
    stereo = np.stack([tone(), -0.5 * tone()])
    mono, rate = audio_utils.convert_waveform(stereo, 16_000, to_mono=True)
    np.testing.assert_allclose(mono, 0.25 * tone()[None], atol=1e-6)
    assert (mono.dtype, rate) == (np.float32, 16_000)
    loud, _ = audio_utils.convert_waveform(stereo, 16_000, normalize_volume=True)
    assert np.abs(loud).max() == pytest.approx(1.0)
    silent, _ = audio_utils.convert_waveform(np.zeros((1, 10), np.float32), 16_000, normalize_volume=True)
    assert not silent.any()


def manifest(folder: Path, *audio_paths: Path):
    """fairseq's dataset of a manifest `dev.tsv` with these recordings."""
    rows = [f"id{i}\t{path}\t48\ta" for i, path in enumerate(audio_paths)]
    (folder / "dev.tsv").write_text("\n".join(["id\taudio\tn_frames\ttgt_text", *rows]) + "\n")
    (folder / "config.yaml").write_text("input_feat_per_channel: 80\n")
    dictionary = Dictionary()
    dictionary.add_symbol("a")
    return SpeechToTextDatasetCreator.from_tsv(
        str(folder), S2TDataConfig(folder / "config.yaml"), "dev", dictionary, None, None, False, epoch=1, seed=1
    )


@pytest.mark.parametrize("bad", ["gone.wav", "gone.npy", "gone.zip:10:20", "broken.wav"])
def test_unreadable_row_is_named(tmp_path, bad):
    soundfile.write(tmp_path / "good.wav", tone(), audio.SAMPLE_RATE)
    (tmp_path / "broken.wav").write_bytes(b"RIFF nothing")
    dataset = manifest(tmp_path, tmp_path / "good.wav", tmp_path / bad)
    assert dataset[0].source.shape == (48, 80)
    with pytest.raises(LeapformerError, match=rf"dev\.tsv, row 2 \(.*{bad}\)"):
        dataset[1]


def test_interpreter_ends_cleanly_while_a_batch_is_being_read():
    code = (
        "import torch, leapformer_fairseq\n"
        "from fairseq.data.iterators import BufferedIterator\n"
        "class Batches(list):\n"
        "    def __iter__(self):\n"
        "        while True:\n"
        "            yield torch.ones(600, 600) @ torch.ones(600, 600)\n"
        "next(BufferedIterator(2, Batches([0] * 10**6)))\n"
    )
    assert run_python(code).returncode == 0


class TestUserDir:
    def test_other_spellings_of_our_path(self, tmp_path):
        (tmp_path / "renamed").symlink_to(PLUGIN_DIR)
        for path in (f"{PLUGIN_DIR}/", PLUGIN_DIR / ".." / PLUGIN_DIR.name, tmp_path / "renamed", PLUGIN_DIR.name):
            utils.import_user_module(argparse.Namespace(user_dir=str(path)))

    def test_second_copy_is_explained(self, tmp_path):
        (tmp_path / PLUGIN_DIR.name).mkdir()
        with pytest.raises(LeapformerError, match="second copy of the plugin"):
            utils.import_user_module(argparse.Namespace(user_dir=str(tmp_path / PLUGIN_DIR.name)))

    def test_path_that_does_not_exist(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            utils.import_user_module(argparse.Namespace(user_dir=str(tmp_path / "gone")))

    def test_plugin_loaded_by_fairseq_from_any_folder(self, tmp_path):
        """As `fairseq-train --user-dir` does it, where the package is not importable by itself."""
        shutil.copytree(PLUGIN_DIR, tmp_path / PLUGIN_DIR.name, ignore=shutil.ignore_patterns("__pycache__"))
        code = (
            "import argparse, sys; from fairseq import utils\n"
            f"args = argparse.Namespace(user_dir={str(tmp_path / PLUGIN_DIR.name)!r})\n"
            "utils.import_user_module(args); utils.import_user_module(args)\n"
            "print(sys.modules['leapformer_fairseq'].__file__)"
        )
        done = run_python(code, cwd="/")
        assert done.stdout.strip() == str(tmp_path / PLUGIN_DIR.name / "__init__.py"), done.stderr


@pytest.mark.parametrize("content", [b"", b"no checkpoint at all", b"PK\x03\x04 half a zip file"])
def test_a_file_that_is_no_checkpoint_is_named(tmp_path, content):
    from fairseq import checkpoint_utils

    path = tmp_path / "broken.pt"
    path.write_bytes(content)
    with pytest.raises(LeapformerError, match=r"broken\.pt cannot be read as a fairseq checkpoint \(.+\)"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))


def test_a_missing_checkpoint_says_so_itself(tmp_path):
    from fairseq import checkpoint_utils

    with pytest.raises(OSError, match="nowhere"):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "nowhere.pt"))


@pytest.mark.parametrize(
    ("wrong", "shown"),
    [
        (LeapformerError("another vocabulary"), "^another vocabulary$"),
        (
            RuntimeError("errors:\n size of x\n size of y"),
            r"a.pt does not fit this model \(size of x\); use the layers",
        ),
    ],
)
def test_training_tells_what_a_model_says_of_a_checkpoint(wrong, shown, tmp_path, monkeypatch):
    from fairseq.trainer import Trainer

    class Model:
        def load_state_dict(self, *args, **kwargs):
            raise wrong

    checkpoint = SimpleNamespace(load_checkpoint_on_all_dp_ranks=True)
    config = SimpleNamespace(checkpoint=checkpoint, model=SimpleNamespace())
    trainer = SimpleNamespace(cfg=config, model=Model(), data_parallel_world_size=1, tpu=False, is_fsdp=False)
    monkeypatch.setattr(checkpoint_utils, "load_checkpoint_to_cpu", lambda *args, **kwargs: {"model": {}})
    (tmp_path / "a.pt").touch()
    with pytest.raises(Exception, match=shown) as caught:
        Trainer.load_checkpoint(trainer, str(tmp_path / "a.pt"))
    assert isinstance(caught.value, LeapformerError)

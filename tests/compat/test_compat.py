"""Every patch of fairseq, from the outside: what failed without it works, and nothing is less protected than before."""

import argparse
import io
import os
import pickle
import re
import signal
import subprocess
import sys
from argparse import Namespace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.compat import patches
from leapformer_fairseq.compat.patch import Patch
from leapformer_fairseq.runtime import audio
from leapformer_fairseq.support.errors import LeapformerError
from tests.covering import kept
from tests.fresh import run_after

pytest.importorskip("fairseq")
from fairseq import binarizer, checkpoint_utils, file_chunker_utils, options  # noqa: E402
from fairseq.data import Dictionary  # noqa: E402
from fairseq.data.audio import audio_utils  # noqa: E402
from fairseq.sequence_generator import SequenceGenerator  # noqa: E402
from fairseq_cli import interactive, preprocess  # noqa: E402

patches.apply()


def run_python(code: str, **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, **kwargs)


def tone(rate: int = audio.SAMPLE_RATE) -> np.ndarray:
    """Half a second of 440 Hz in [-1, 1], rounded so that a 16-bit file holds it exactly."""
    wave = 0.3 * np.sin(2 * np.pi * 440 * np.arange(rate // 2) / rate)
    return (np.round(wave * audio.INT16_SCALE) / audio.INT16_SCALE).astype(np.float32)


def test_second_apply_changes_nothing():
    before = audio_utils.convert_waveform, options.parse_args_and_arch
    assert patches.apply() == patches.apply()
    assert (audio_utils.convert_waveform, options.parse_args_and_arch) == before


def test_patch_that_is_not_needed_is_left_out(monkeypatch):
    def fail() -> None:
        raise AssertionError("patched although not needed")

    patch = Patch("unneeded", "a reason", "no version", needed=lambda: False, apply=fail)
    monkeypatch.setattr(patches, "PATCHES", (patch,))
    monkeypatch.setattr(patches, "_applied", {})
    assert patches.apply() == []


# exit-code-134 stops threads that stay what they are; where their defect is, a thread is a daemon.
@pytest.mark.parametrize(
    "patch", [patch for patch in patches.PATCHES if patch.name != "exit-code-134"], ids=lambda patch: patch.name
)
def test_a_patch_removes_the_defect_that_it_looks_for(patch):
    assert not patch.needed()


def test_a_defect_is_looked_for_and_not_taken_for_granted():
    """In a process where fairseq, numpy and torch have no defect, nothing is patched."""
    code = (
        "import argparse, types, numpy, torch, fairseq.options as options\n"
        "from fairseq.data import iterators\n"
        "from fairseq.data.audio import audio_utils\n"
        "from leapformer_fairseq.compat import patches\n"
        "found = {patch.name for patch in patches.PATCHES if patch.needed()}\n"
        "assert found == {patch.name for patch in patches.PATCHES}, found\n"  # the versions of these tests
        "numpy.compat = types.SimpleNamespace(long=int)\n"
        "from leapformer_fairseq.compat.checkpoints import checkpoint_types\n"
        "torch.serialization.add_safe_globals(checkpoint_types())\n"
        "audio_utils.convert_waveform = lambda waveform, *args, **kwargs: (waveform, 16_000)\n"
        "audio_utils._get_torchaudio_fbank = lambda waveform, *args: waveform\n"
        "parse = options.parse_args_and_arch\n"
        "def parsed(*args):\n"
        "    found = parse(*args); found.tpu = False; return found\n"
        "options.parse_args_and_arch = parsed\n"
        "from fairseq import utils\n"
        "from fairseq.data.audio import data_cfg\n"
        "utils.eval = lambda source: [0]\n"
        "data_cfg.get_config_from_yaml = lambda path: {'audio_root': '/beside'}\n"
        "iterators.BufferedIterator._create_consumer = argparse.Namespace.__eq__\n"
        "from fairseq import binarizer; from fairseq.data import dictionary\n"
        "binarizer.Pool = dictionary.Pool = None\n"
        "from fairseq.models.ema.ema import EMA\n"
        "EMA.step = lambda self, model: self.model.load_state_dict(model.state_dict())\n"
        "from fairseq.modules.quantization.scalar import ops, utils as layers\n"
        "ops.emulate_int8_tensor = lambda w: w\n"
        "layers.get_layers = lambda *args: []\n"
        "from fairseq import models; models.build_model = lambda *args: 3\n"
        "from fairseq.ngram_repeat_block import NGramRepeatBlock\n"
        "NGramRepeatBlock._no_repeat_ngram = lambda *args: torch.tensor(-numpy.inf)\n"
        "import inspect; inspect.getsource = lambda function: 'daemon = False, \"rb\" !='\n"
        "assert patches.apply() == [], patches.apply()"
    )
    done = run_after("import fairseq", code)
    assert done.returncode == 0, done.stderr


def test_metrics_import_their_libraries_when_they_are_asked_for():
    code = (
        "import sys\n"
        "from leapformer_fairseq import register\n"
        "register()\n"
        "assert not {'sklearn', 'scipy', 'pandas'} & sys.modules.keys()\n"
        "from fairseq.criterions import sentence_prediction as criterion\n"
        "from fairseq.tasks import audio_classification as task\n"
        "assert criterion.f1_score([1, 0, 1], [1, 0, 0]) == 2 / 3\n"
        "assert abs(criterion.pearsonr([1, 2, 3], [2, 4, 6])[0] - 1) < 1e-9\n"
        "assert abs(criterion._matthews_corrcoef([1, 0], [1, 0]) - 1) < 1e-9\n"
        "assert len(task.sklearn_metrics.roc_curve([0, 1], [0.2, 0.7])) == 3\n"
        "import scipy.signal, sklearn.cluster\n"
    )
    done = run_after("import torch", code)
    assert done.returncode == 0, done.stderr


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
    with pytest.raises(pickle.UnpicklingError, match="system"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    assert not proof.exists()


def test_np_compat():
    assert np.zeros(2, dtype=np.compat.long).dtype == np.int64


@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_fairseqs_features_are_ours(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, tone(), audio.SAMPLE_RATE)
    np.testing.assert_array_equal(audio_utils.get_fbank(str(path)), audio.fbank(tone()))


@pytest.mark.parametrize("options", [
    {}, {"frames": 900, "start": 100}, {"start": -300}, {"normalization": False},
    {"mono": False, "output_sample_rate": 8_000}, {"always_2d": False, "normalize_volume": True},
])  # fmt: skip
def test_waveforms_are_those_of_soundfile(tmp_path, options):
    samples = np.stack([tone(), 0.5 * tone()], 1)
    soundfile.write(tmp_path / "a.wav", samples, audio.SAMPLE_RATE, subtype="FLOAT")
    more = {name: options.get(name, default) for name, default in (("frames", -1), ("start", 0))}
    expected, rate = soundfile.read(tmp_path / "a.wav", dtype="float32", always_2d=True, **more)
    expected, rate = audio_utils.convert_waveform(
        expected.T, rate, options.get("normalize_volume", False), options.get("mono", True),
        options.get("output_sample_rate"),
    )  # fmt: skip
    expected = expected * (1 if options.get("normalization", True) else 2.0**15)
    expected = expected if options.get("always_2d", True) else expected[0]
    for file in (str(tmp_path / "a.wav"), io.BytesIO((tmp_path / "a.wav").read_bytes())):  # of an archive
        found = audio_utils.get_waveform(file, **options)
        np.testing.assert_array_equal(found[0], expected)
        assert found[1] == rate and found[0].dtype == np.float32


def test_waveforms_are_bounded_and_checked_before_they_are_decoded(tmp_path, monkeypatch):
    for name, samples, rate in (("slow", tone(), 1), ("loud", 3e4 * tone(), 16_000), ("long", tone(), 16_000)):
        soundfile.write(tmp_path / f"{name}.wav", samples, rate, subtype="FLOAT")
    for name, said in (("slow", "claims 1 samples per second"), ("loud", "samples of"), ("gone", "no audio file at")):
        with pytest.raises(audio.AudioError, match=said) as error:
            audio_utils.get_fbank(str(tmp_path / f"{name}.wav"))
        assert "\n" not in str(error.value)
    monkeypatch.setattr(audio, "LONGEST", 1_000)
    monkeypatch.setattr(soundfile.SoundFile, "read", lambda *given, **more: pytest.fail("it was decoded"))
    for file in (str(tmp_path / "long.wav"), io.BytesIO((tmp_path / "long.wav").read_bytes())):
        with pytest.raises(audio.AudioError, match="more than fits in memory"):
            audio_utils.get_waveform(file)
    with pytest.raises(ValueError, match="Unsupported audio format: .mp3"):
        audio_utils.get_waveform("a.mp3")


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


def test_interpreter_ends_cleanly_while_a_batch_is_being_read():
    code = (
        "import torch, leapformer_fairseq; leapformer_fairseq.register()\n"
        "from fairseq.data.iterators import BufferedIterator\n"
        "class Batches(list):\n"
        "    def __iter__(self):\n"
        "        while True:\n"
        "            yield torch.ones(600, 600) @ torch.ones(600, 600)\n"
        "next(BufferedIterator(2, Batches([0] * 10**6)))\n"
    )
    assert run_python(code).returncode == 0


@pytest.mark.parametrize("size", [1, 2])
def test_no_ngram_is_generated_twice(size):
    """The model always likes the same four tokens best."""
    model, likely = torch.nn.Module(), torch.tensor([-9.0, -9.0, -3.0, -9.0, 2.0, 1.5, 1.0, 0.5])
    model.encoder = SimpleNamespace(forward_torchscript=dict, reorder_encoder_out=lambda out, order: out)
    model.decoder = SimpleNamespace(forward=lambda tokens, encoder_out: (likely.repeat(*tokens.shape, 1), None))
    model.max_decoder_positions = lambda: 20
    model.get_normalized_probs = lambda out, log_probs, sample: out[0].log_softmax(-1)
    words = Dictionary()
    for word in "abcd":
        words.add_symbol(word)
    options = {"beam_size": 1, "max_len_b": 6, "min_len": 4, "no_repeat_ngram_size": size}
    sample = {"net_input": {"src_tokens": torch.tensor([[4, 2]]), "src_lengths": torch.tensor([2])}}
    ((best, *_),) = SequenceGenerator([model], words, **options).generate([model], sample)
    text = best["tokens"].tolist()[:-1]
    found = [tuple(text[i : i + size]) for i in range(len(text) - size + 1)]
    assert len(set(found)) == len(found) >= 3


@pytest.mark.parametrize("asked", [[], ["--bf16"]])
def test_bf16_is_no_tpu(asked):
    arguments = ["data", "--arch", "transformer", "--optimizer", "adam", *asked]
    found = options.parse_args_and_arch(options.get_training_parser(), arguments)
    assert (found.bf16, found.tpu) == (bool(asked), False)


SENTENCES = ["one", "two\rhalves", "three\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029parts", "four"]


def dies(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("where", ["dictionary", "binarizer"])
def test_a_killed_process_ends_preprocess(where, tmp_path, monkeypatch, capfd):
    """Forked processes have the changed functions, too."""
    (tmp_path / "text").write_text("a b c\n" * 100)
    if where == "dictionary":
        monkeypatch.setattr(Dictionary, "_add_file_to_dictionary_single_worker", dies)
    else:
        monkeypatch.setattr(binarizer.FileBinarizer, "_binarize_chunk_and_finalize", dies)
    monkeypatch.setattr(sys, "argv", ["pytest"])
    words = f"--only-source --trainpref {tmp_path}/text --destdir {tmp_path}/out --workers 3"
    assert main(["preprocess", *words.split()]) == 2
    assert (
        "processes was killed, perhaps out of memory; give fewer --workers" in capfd.readouterr().err.splitlines()[-1]
    )


@pytest.mark.parametrize("workers", kept([1, 3], 1))
def test_preprocess_ends_lines_at_line_feeds_only(tmp_path, workers):
    (tmp_path / "t.a").write_bytes("".join(f"{line}\n" for line in SENTENCES).encode())
    (tmp_path / "t.b").write_bytes(b"x\r\n" * len(SENTENCES))
    offsets = file_chunker_utils.find_offsets(str(tmp_path / "t.a"), workers)
    read = []
    for start, end in pairwise(offsets):
        with file_chunker_utils.Chunker(str(tmp_path / "t.a"), start, end) as lines:
            read += lines
    assert read == SENTENCES
    command = ["-s", "a", "-t", "b", "--trainpref", tmp_path / "t", "--destdir", tmp_path / "out", "--workers", workers]
    words = ["preprocess", *map(str, command)]
    done = run_python(f"from leapformer_fairseq.cli.main import main; raise SystemExit(main({words}))")
    assert re.findall(r"\.[ab]: (\d+) sents", done.stdout + done.stderr) == ["4", "4"], done.stderr


def test_interactive_reads_as_many_sentences_as_there_are(tmp_path, monkeypatch):
    written = "".join(f"{line}\n" for line in SENTENCES).encode()
    (tmp_path / "input").write_bytes(written)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(written), "utf-8"))
    for source in (str(tmp_path / "input"), "-"):
        assert list(interactive.buffered_read(source, 3)) == [SENTENCES[:3], SENTENCES[3:]]


@pytest.mark.parametrize("workers", ["1", "3"])
def test_preprocess_names_the_line_that_is_not_utf8(tmp_path, workers):
    (tmp_path / "t.a").write_bytes(b"good\n" * 8 + b"b\xe4d\n")
    with pytest.raises(LeapformerError, match="t.a, line 9, is not UTF-8 .byte 0xe4 at 2"):
        for start, end in pairwise(file_chunker_utils.find_offsets(str(tmp_path / "t.a"), int(workers))):
            with file_chunker_utils.Chunker(str(tmp_path / "t.a"), start, end) as lines:
                list(lines)


@pytest.mark.parametrize("differs", ["b", "align"])
def test_preprocess_compares_counts(tmp_path, differs):
    for name in ("a", "b", "align"):
        (tmp_path / f"v.{name}").write_text("0-0\n" * (39 if name == differs else 40))
    args = Namespace(
        source_lang="a", target_lang="b", only_source=False, trainpref=None, validpref=str(tmp_path / "v"),
        testpref=None, align_suffix="align", alignfile=None,
    )  # fmt: skip
    with pytest.raises(LeapformerError, match=rf"v\.a has 40 lines but .*v\.{differs} has 39"):
        preprocess._make_all("a", None, args)

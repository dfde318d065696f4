"""Filterbanks against an independent implementation, streaming against offline, and every refusal of a recording."""

import io
import sys

import kaldi_native_fbank
import numpy as np
import onnx
import pytest
import soundfile
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from leapformer_fairseq.data.recordings import Recording, Unusable, read_audible, read_mono, read_segment
from leapformer_fairseq.runtime.acoustics.fbank import BUNDLED, graph
from leapformer_fairseq.runtime.audio import (
    SAMPLE_RATE,
    OnlineFbank,
    fbank,
    file_kind,
    read_blocks,
    read_pcm,
    read_speech,
)
from leapformer_fairseq.runtime.serve.messages import Samples
from leapformer_fairseq.support.errors import LeapformerError


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (0.1 * rng.standard_normal(int(seconds * SAMPLE_RATE))).astype(np.float32)


def reference_fbank(samples: np.ndarray, n_bins: int = 80, rate: int = SAMPLE_RATE) -> np.ndarray:
    """Kaldi's filterbank written out: frame, centre, pre-emphasise, window, power spectrum, mel triangles, log."""
    window, hop = int(0.025 * rate), int(0.010 * rate)
    n_fft = 1 << (window - 1).bit_length()
    starts = hop * np.arange(1 + (len(samples) - window) // hop)
    frames = samples.astype(np.float64)[starts[:, None] + np.arange(window)] * 2**15
    frames -= frames.mean(axis=1, keepdims=True)
    frames -= 0.97 * np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    frames *= np.hanning(window) ** 0.85  # "povey"
    power = np.abs(np.fft.rfft(frames, n=n_fft)) ** 2

    def mel(hertz: np.ndarray) -> np.ndarray:
        return 1127.0 * np.log1p(hertz / 700.0)

    edges = np.linspace(mel(20.0), mel(rate / 2), n_bins + 2)
    left, centre, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    bins = mel(np.arange(n_fft // 2 + 1) * rate / n_fft)
    triangles = np.maximum(0, np.minimum((bins - left) / (centre - left), (right - bins) / (right - centre)))
    return np.log(np.maximum(power @ triangles.T, np.finfo(np.float32).eps))


SIGNALS = {
    "noise": noise(0.5),
    "clipped": (9 * noise(0.5, 1)).clip(-1, 1),
    "a tone at full scale": np.sin(0.4 * np.arange(8_000)),
    "silence": np.zeros(8_000),
    "an offset": np.ones(8_000),
    "clicks": (np.arange(8_000) % 1_000 == 0).astype(float),
    "the last bit": np.rint(10 * noise(0.5, 2)) / 2**15,
    "almost nothing": 1e-8 * noise(0.5, 3),
    "beyond full scale": 8 * np.sin(0.04 * np.arange(8_000)),
}


@pytest.mark.parametrize("name", SIGNALS)
def test_matches_two_independent_implementations(name):
    """Of Kaldi's, in float32, bins far below the loudest of their frame are inexact."""
    samples = SIGNALS[name].astype(np.float32)
    ours, options = fbank(samples), kaldi_native_fbank.FbankOptions()
    options.frame_opts.dither, options.mel_opts.num_bins = 0.0, 80
    kaldis = kaldi_native_fbank.OnlineFbank(options)
    kaldis.accept_waveform(SAMPLE_RATE, (samples * 2**15).tolist())
    theirs = np.stack([kaldis.get_frame(i) for i in range(kaldis.num_frames_ready)])
    heard = theirs > theirs.max(1, keepdims=True) - 6 * np.log(10)
    assert np.abs(ours - theirs)[heard].max() < 5e-4
    np.testing.assert_allclose(ours, reference_fbank(samples), atol=1e-5)


@pytest.mark.parametrize(("rate", "bins"), [(8_000, 40), (22_050, 80), (44_100, 23)])
def test_any_rate_and_number_of_bins(rate, bins):
    samples = noise(0.5)
    found = fbank(samples, rate, bins)
    np.testing.assert_allclose(found, reference_fbank(samples, bins, rate), atol=1e-5)


def test_the_bundled_graph_is_the_one_that_is_built():
    bundled, built = (onnx.load_model_from_string(content) for content in (BUNDLED.read_bytes(), graph()))
    constants = [{x.name: onnx.numpy_helper.to_array(x) for x in model.graph.initializer} for model in (bundled, built)]
    assert constants[0].keys() == constants[1].keys()
    for name, value in constants[0].items():  # mathematical functions differ in the last bit from machine to machine
        np.testing.assert_allclose(value, constants[1][name], rtol=1e-6, atol=1e-12, err_msg=name)
    del bundled.graph.initializer[:], built.graph.initializer[:]
    assert bundled == built and len(BUNDLED.read_bytes()) < 120_000


def test_another_size_without_onnx_names_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(LeapformerError, match="41 filterbank bins at 16000 Hz .* pip install onnx"):
        fbank(noise(0.1), n_bins=41)


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, SAMPLE_RATE // 2), max_size=12))
def test_any_cutting_gives_the_offline_frames(cuts):
    samples = noise(0.5)
    online = OnlineFbank()
    pieces = [online.push(piece) for piece in np.split(samples, sorted(cuts))]
    np.testing.assert_array_equal(np.concatenate(pieces), fbank(samples))


@settings(max_examples=20, deadline=None)
@given(cut=st.integers(0, SAMPLE_RATE // 2))
def test_a_fork_hears_what_comes_after(cut):
    samples, online = noise(0.5), OnlineFbank()
    before = online.push(samples[:cut])
    other = online.fork()
    online.push(noise(0.3, seed=1))
    np.testing.assert_array_equal(np.concatenate([before, other.push(samples[cut:])]), fbank(samples))


@pytest.mark.parametrize(("length", "frames"), [(0, 0), (399, 0), (400, 1), (559, 1), (560, 2)])
def test_only_complete_windows_give_frames(length, frames):
    assert fbank(noise(1)[:length]).shape == (frames, 80)


def test_reads_what_was_written(tmp_path):
    samples = noise(0.1)
    soundfile.write(tmp_path / "a.wav", samples, SAMPLE_RATE, subtype="FLOAT")
    np.testing.assert_array_equal(read_speech(tmp_path / "a.wav"), samples)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(LeapformerError, match=r"no audio file at .*gone\.wav"):
        read_speech(tmp_path / "gone.wav")


def test_truncated_file_is_named(tmp_path):
    path = tmp_path / "cut.flac"
    soundfile.write(path, noise(1), SAMPLE_RATE)
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(LeapformerError, match=r"cut\.flac cannot be read as audio"):
        read_speech(path)


@pytest.mark.parametrize(
    ("shape", "rate", "message"),
    [((1600, 2), SAMPLE_RATE, "2 channels"), ((800,), 8000, "8000 Hz"), ((0,), SAMPLE_RATE, "no samples")],
)
def test_unsuitable_recording_is_refused(tmp_path, shape, rate, message):
    path = tmp_path / "a.wav"
    soundfile.write(path, np.zeros(shape, np.float32), rate)
    with pytest.raises(LeapformerError, match=message):
        read_speech(path)


# ---------------------------------------------------------------------------------------------- every reader's checks
READERS = {
    "whole": lambda path: read_speech(path),
    "blocks": lambda path: list(read_blocks(path, 1_000)),
    "segment": lambda path: read_segment(of(path)),
    "of any kind": lambda path: read_audible(of(path)),
    "at its own rate": lambda path: read_mono(of(path)),
    "standard input": lambda path: heard(path.read_bytes()),
}


def of(path) -> Recording:
    return Recording("a", path, "", "", "", 0.0, None)


def heard(data: bytes, piece: int = 3_200) -> np.ndarray:
    """What `stream -` hears when these bytes arrive in pieces."""

    class Pipe(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            nonlocal data
            count = min(piece, len(buffer))
            buffer[: len(data[:count])], size = data[:count], len(data[:count])
            data = data[count:]
            return size

    return np.concatenate(list(read_pcm(io.BufferedReader(Pipe()), "standard input")) or [np.zeros(0, np.float32)])


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("rate", [1, 3_999, 384_001])
def test_a_rate_that_no_recording_has_is_refused(tmp_path, reader, rate):
    path = tmp_path / "a.wav"
    soundfile.write(path, noise(0.1), SAMPLE_RATE, subtype="PCM_16")
    content = bytearray(path.read_bytes())
    content[24:28] = rate.to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises((LeapformerError, Unusable), match=f"claims {rate:,} samples per second|outside 4 to 384 kHz"):
        READERS[reader](path)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("scale", "said"), [(32_767.0, "far beyond|samples of"), (np.nan, "no numbers|samples of nan")]
)
def test_samples_that_cannot_be_are_refused(tmp_path, reader, scale, said):
    soundfile.write(tmp_path / "a.wav", noise(0.1) * np.float32(scale), SAMPLE_RATE, subtype="FLOAT")
    with pytest.raises((LeapformerError, Unusable), match=said):
        READERS[reader](tmp_path / "a.wav")


@pytest.mark.parametrize("reader", ["whole", "segment", "of any kind", "at its own rate"])
def test_what_would_fill_the_memory_is_refused_before_it_is_decoded(tmp_path, reader, monkeypatch):
    soundfile.write(tmp_path / "a.wav", noise(0.1), SAMPLE_RATE)
    monkeypatch.setattr("leapformer_fairseq.runtime.audio.LONGEST", 1_000)
    monkeypatch.setattr(soundfile.SoundFile, "read", lambda *_, **__: pytest.fail("decoded"))
    with pytest.raises((LeapformerError, Unusable), match="more than fits in memory|too much to decode"):
        READERS[reader](tmp_path / "a.wav")


WRITTEN = {
    "WAV": "PCM_16", "W64": "PCM_16", "FLAC": "PCM_16", "OGG": "VORBIS", "AU": "PCM_16", "CAF": "PCM_16",
    "AIFF": "PCM_16", "MP3": "MPEG_LAYER_III", "RF64": "PCM_16",
}  # fmt: skip
NOT_READ = {
    "MP4": b"\x00\x00\x00\x20ftypM4A ", "WebM": b"\x1aE\xdf\xa3\x9fB\x86\x81\x01B\xf7\x81",
    "AAC": (b"\xff\xf1\x50\x80\x02\x1f\xfc" + bytes(9)) * 99,  # frames of 16 bytes
}  # fmt: skip


def file_of(kind: str, samples: np.ndarray) -> bytes:
    if kind in NOT_READ:
        return NOT_READ[kind] + bytes(4_000)
    file = io.BytesIO()
    soundfile.write(
        file, samples, SAMPLE_RATE, format="OGG" if kind == "Opus" else kind, subtype=WRITTEN.get(kind, kind)
    )
    return file.getvalue()


@pytest.mark.parametrize("piece", [7, 3_200])
@pytest.mark.parametrize("kind", [*WRITTEN, "Opus"])
def test_a_file_on_standard_input_is_decoded(tmp_path, kind, piece):
    data = file_of(kind, noise(0.5))
    (tmp_path / "a").write_bytes(data)
    np.testing.assert_allclose(heard(data, piece), read_speech(tmp_path / "a"), atol=1e-6)


@pytest.mark.parametrize("piece", [7, 3_200])
@pytest.mark.parametrize("kind", NOT_READ)
def test_a_file_that_cannot_be_decoded_is_refused_with_the_remedy(kind, piece):
    with pytest.raises(LeapformerError, match=f"standard input is {kind}: .*; or send raw PCM, e.g. `ffmpeg -i FILE"):
        heard(file_of(kind, noise(0.5)), piece)


def test_a_broken_file_is_one_line_without_an_address():
    with pytest.raises(LeapformerError, match="standard input is Ogg: ") as error:
        heard(b"OggS" + bytes(100))
    assert "object at" not in str(error.value) and "\n" not in str(error.value)


def test_a_file_of_another_rate_on_standard_input_is_refused():
    file = io.BytesIO()
    soundfile.write(file, noise(0.5), 44_100, format="WAV")
    with pytest.raises(LeapformerError, match="standard input is WAV: .* 44100 Hz, 16000 Hz is needed"):
        heard(file.getvalue())


@pytest.mark.parametrize("piece", [2, 6, 3_200, 1 << 20])
@pytest.mark.parametrize("kind", [*WRITTEN, "Opus", *NOT_READ])
def test_a_server_takes_no_file_for_samples(kind, piece):
    data, samples = file_of(kind, noise(0.5)), Samples()
    with pytest.raises(LeapformerError, match=r"the audio is a file \(.*\), raw 16-bit PCM is needed; send raw PCM"):
        for start in range(0, len(data), piece):
            samples.of(data[start : start + piece + len(data[start : start + piece]) % 2])


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=300), like_mpeg=st.booleans(), piece=st.integers(1, 99))
def test_samples_are_no_file(data, like_mpeg, piece):
    data = b"\xff\xfb\x90\x40" * like_mpeg + data
    assume(file_kind(data) is None)
    expected = np.frombuffer(data[: len(data) // 2 * 2], "<i2") / np.float32(2**15)
    np.testing.assert_array_equal(heard(data, piece), expected)

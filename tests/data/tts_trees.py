"""A small text to speech data set in fairseq's layout: two phonemes that are two tones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile
import yaml

from leapformer_fairseq.runtime.acoustics.mel import MelConfig, log_mel

MELS = MelConfig(sample_rate=8000, n_fft=256, win_length=200, hop_length=80, n_mels=20, f_max=4000.0)
FRAMES = {"a": 6, "o": 10}
TONES = {"a": 900.0, "o": 400.0}
SENTENCES = {
    "train": ["a o", "o a a", "a a o o", "o o", "a o a", "o a"] * 2,
    "dev": ["a o o", "o a"],
    "test": ["o", "a a"],
}


def tts_tree(folder: Path, durations: bool = True) -> Path:
    """Manifests, recordings, log-mels, dictionary and configuration."""
    (folder / "wav").mkdir(parents=True)
    (folder / "mel").mkdir()
    everything = []
    for split, sentences in SENTENCES.items():
        lines = [
            "\t".join(
                ["id", "audio", "n_frames", "tgt_text", "speaker", *["duration"] * durations, "src_text", "recording"]
            )
        ]
        for number, sentence in enumerate(sentences):
            name = f"{split}-{number}"
            samples = np.concatenate([_tone(phoneme) for phoneme in sentence.split()])
            soundfile.write(folder / "wav" / f"{name}.wav", samples, MELS.sample_rate, subtype="PCM_16")
            frames = log_mel(samples, MELS)[: len(samples) // MELS.hop_length]
            np.save(folder / "mel" / f"{name}.npy", frames)
            everything.append(frames)
            spoken = " ".join(str(FRAMES[phoneme]) for phoneme in sentence.split())
            cells = [name, f"mel/{name}.npy", str(len(frames)), sentence, "tone", *[spoken] * durations]
            lines.append("\t".join([*cells, sentence.replace(" ", ""), f"wav/{name}.wav"]))
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    frames = np.concatenate(everything)
    np.savez(folder / "gcmvn.npz", mean=frames.mean(0), std=frames.std(0))
    (folder / "vocab.txt").write_text("a 20\no 20\n", encoding="utf-8")
    config = {
        "vocab_filename": "vocab.txt",
        "audio_root": str(folder),
        "sample_rate": MELS.sample_rate,
        "features": MELS.features(),
        "global_cmvn": {"stats_npz_path": str(folder / "gcmvn.npz")},
        "transforms": {"*": ["global_cmvn"]},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return folder


def _tone(phoneme: str) -> np.ndarray:
    time = np.arange(FRAMES[phoneme] * MELS.hop_length) / MELS.sample_rate
    return (0.3 * np.sin(2 * np.pi * TONES[phoneme] * time)).astype(np.float32)

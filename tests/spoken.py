"""Data of fairseq's speech_to_text task: recordings of noise whose loudness changes, of two words each."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import sentencepiece
import soundfile
import yaml

from leapformer_fairseq.runtime.audio import fbank

from .made import made
from .simul.conftest import SENTENCES, SPECIALS, subwords

GLOBAL, OWN = "config.yaml", "config_utterance.yaml"  # by what frames are normalised
RECORDINGS = {"train": 12, "valid": 2, "test": 6}


def spoken() -> Path:
    """A folder with recordings, the features of training, manifests of both, and two configurations."""
    return made("spoken", _write)


def samples(seconds: float, seed: int) -> np.ndarray:
    """16-bit samples of a recording."""
    time = np.arange(round(seconds * 16_000)) / 16_000
    sound = np.random.default_rng(seed).normal(size=time.size) * (1.2 + np.sin(time * (7 + 5 * seed)))
    return np.round(sound.clip(-4, 4) * 2_000).astype(np.int16)


def _write(root: Path) -> None:
    shutil.copy(subwords(), root / "spm.model")
    model = sentencepiece.SentencePieceProcessor(model_file=str(root / "spm.model"))
    pieces = [model.id_to_piece(number) for number in range(model.get_piece_size())]
    (root / "dict.txt").write_text("".join(f"{piece} 1\n" for piece in pieces if piece not in SPECIALS))
    words, heard, seed = " ".join(SENTENCES).split(), [], 0
    for split, count in RECORDINGS.items():
        rows = ["id\taudio\tn_frames\ttgt_text\tspeaker"]
        for _ in range(count):
            seed += 1
            sound, text = samples(0.4 + 0.1 * (seed % 7), seed), " ".join(words[seed % 9 : seed % 9 + 2])
            soundfile.write(root / f"{seed}.wav", sound, 16_000, subtype="PCM_16")
            frames = fbank(sound / np.float32(2**15))
            np.save(root / f"{seed}.npy", frames)
            heard.append(frames)
            rows.append(f"{seed}\t{root / f'{seed}.npy'}\t{len(frames)}\t{text}\tx")
        (root / f"{split}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    every = np.concatenate(heard)
    np.savez(root / "gcmvn.npz", mean=every.mean(0), std=every.std(0))
    about = {
        "vocab_filename": "dict.txt",
        "bpe_tokenizer": {"bpe": "sentencepiece", "sentencepiece_model": "spm.model"},
        "global_cmvn": {"stats_npz_path": str(root / "gcmvn.npz")},
        "specaugment": {"freq_mask_N": 1, "freq_mask_F": 9, "time_mask_N": 1, "time_mask_T": 9, "time_mask_p": 0.3},
    }
    for name, transform in ((GLOBAL, "global_cmvn"), (OWN, "utterance_cmvn")):
        transforms = {"*": [transform], "_train": [transform, "specaugment"]}
        (root / name).write_text(yaml.safe_dump({**about, "feature_transforms": transforms}))

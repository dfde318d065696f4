"""Reading a text-to-speech data folder with fairseq's own data set, as its task does."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from leapformer_fairseq.compat import patches
from leapformer_fairseq.data.manifests import read_manifest


def check_with_fairseq(root: Path, split: str, aligned: bool = True) -> int:
    """Compare a batch of all utterances with the manifest and the .npy files; returns how many there are."""
    from fairseq.data import Dictionary
    from fairseq.data.audio.data_cfg import S2TDataConfig
    from fairseq.data.audio.text_to_speech_dataset import TextToSpeechDatasetCreator

    patches.apply()  # paths are those beside the configuration
    config = S2TDataConfig(root / "config.yaml")
    dictionary = Dictionary.load(str(root / config.vocab_filename))
    data = TextToSpeechDatasetCreator.from_tsv(
        str(root), config, split, dictionary, None, None, is_train_split=split == "train", epoch=1, seed=1
    )
    batch = data.collater([data[index] for index in range(len(data))])
    statistics = np.load(config.config["global_cmvn"]["stats_npz_path"])
    rows = list(read_manifest(root / f"{split}.tsv"))
    tokens, durations = batch["net_input"]["src_tokens"], batch["durations"]
    assert (durations is not None) == aligned
    assert not aligned or durations.shape == tokens.shape
    for place, index in enumerate(batch["id"].tolist()):
        row, frames = rows[index], batch["target_lengths"][place].item()
        assert frames == int(row["n_frames"])
        target = batch["target"][place, :frames].numpy()
        stored = np.load(root / row["audio"])
        np.testing.assert_allclose(target * statistics["std"] + statistics["mean"], stored, atol=1e-3)
        phonemes = row["tgt_text"].split()
        wanted = [dictionary.index(phoneme) for phoneme in phonemes] + [dictionary.eos()]
        assert tokens[place, : len(wanted)].tolist() == wanted
        assert (tokens[place, len(wanted) :] == dictionary.pad()).all()
        assert split != "train" or dictionary.unk() not in wanted
        if aligned:
            assert durations[place].sum().item() == frames
            assert row["duration"].split() == [str(count) for count in durations[place, : len(phonemes)].tolist()]
    if split == "train":
        frames = np.concatenate([data[index].source.numpy() for index in range(len(data))])
        np.testing.assert_allclose(frames.mean(0), 0, atol=1e-3)
        np.testing.assert_allclose(frames.std(0), 1, atol=1e-2)
    return len(data)

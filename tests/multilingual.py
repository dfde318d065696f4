"""fairseq's models of several languages: sentences in "en", backwards in "de", in "fr" with the first word last."""

from __future__ import annotations

from pathlib import Path

from leapformer_fairseq.cli.main import main

from .made import made
from .reversed_text import TRAINING, sentences

PAIRS = ("en-de", "de-en", "en-fr")
SIZES = (
    "--arch transformer --encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 32 --encoder-ffn-embed-dim 32 "
    "--decoder-embed-dim 32 --decoder-ffn-embed-dim 32 --encoder-attention-heads 2 --decoder-attention-heads 2 "
    "--share-all-embeddings"
)
#: by kind: how a model is told the languages
TOLD = {
    "source": "--encoder-langtok src --decoder-langtok",
    "target": "--encoder-langtok tgt",
    "decoder": "--decoder-langtok",
    "ends": "--encoder-langtok src --decoder-langtok --lang-tok-replacing-bos-eos",
}


def data() -> Path:
    """Prepared pairs, all with one dictionary."""

    def make(root: Path) -> None:
        for seed, (split, count) in enumerate({"train": 60, "test": 6}.items(), 1):
            words = [line.split() for line in sentences(count, seed)]
            texts = {"en": words, "de": [line[::-1] for line in words], "fr": [line[1:] + line[:1] for line in words]}
            for language, lines in texts.items():
                (root / f"{split}.{language}").write_text("".join(f"{' '.join(line)}\n" for line in lines))
        dictionary: list[str] = ["--joined-dictionary"]
        for pair in PAIRS:
            source, target = pair.split("-")
            words = ["-s", source, "-t", target, *dictionary, "--workers", "1", "--destdir", str(root / pair)]
            splits = [f"--{split}pref={root / split}" for split in ("train", "test")]
            assert main(["preprocess", *words, *splits]) == 0
            dictionary = ["--srcdict", str(root / "en-de/dict.en.txt"), "--joined-dictionary"]
        (root / "all").mkdir()
        for pair in PAIRS:
            for path in (root / pair).glob("*.*"):
                (root / "all" / path.name).write_bytes(path.read_bytes())

    return made("multilingual-text", make) / "all"


def multilingual(kind: str) -> Path:
    """The checkpoint of a model that is told the languages as `TOLD` says."""

    def make(folder: Path) -> None:
        flags = f"--task translation_multi_simple_epoch --lang-pairs {','.join(PAIRS)} {SIZES} {TOLD[kind]} {TRAINING}"
        command = [str(data()), *flags.split(), "--disable-validation", "--no-epoch-checkpoints"]
        assert main(["train", *command, "--save-dir", str(folder)]) == 0

    return made(f"multilingual-{kind}", make) / "checkpoint_last.pt"

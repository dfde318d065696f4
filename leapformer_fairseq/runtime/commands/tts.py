"""`leapformer tts`: speak text, phonemes or a manifest with a trained model."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import soundfile

from ...support.errors import LeapformerError
from ...support.files import locked_folder, owned, write_text
from ...support.lines import lines_or_text, read_table
from ...support.options import flag
from ...support.progress import progress
from ...support.signature import signature
from ..acoustics.mel import MelConfig
from ..acoustics.vocoder import GriffinLim, Vocoder
from ..espeak import phonemes_of
from ..folder import Folder
from ..spoken import Manifests, Manner, Script, Utterance, Voice
from ..voice import ExportedVoice

RECORD = "run.json"
INSTALL = "pip install 'leapformer-fairseq[train]'"
COLUMNS = ("id", "text", "audio", "frames", "stopped", "reference", "reference_frames", "predicted_frames")


class Training(Protocol):
    """What only an installation for training can do: checkpoints, data sets, neural vocoders and pictures."""

    def voice(self, args: argparse.Namespace, overrides: dict[str, Any]) -> Voice:
        """The checkpoint of --path."""

    def manifests(self, data: str) -> Manifests:
        """The manifests in the folder of --data."""

    def scripts(self, manifests: Manifests, subset: str, speakers: Mapping[str, int] | None) -> list[Script]:
        """The sentences of a manifest."""

    def hifigan(self, checkpoint: str, config: str) -> Vocoder:
        """The vocoder of --hifigan."""

    def draw(self, utterance: Utterance, script: Script, path: Path) -> None:
        """Write a picture of an utterance with its alignment."""


OPTIONS = """
--path CHECKPOINT!      of leapformer_tts, or its exported folder
--subset NAME!          speak the manifest NAME.tsv of the data
| --phonemes FILE_OR_TEXT!  phonemes with spaces between them, a sentence a line
| --text FILE_OR_TEXT!  written sentences, a line each; espeak-ng finds the phonemes
--speaker NAME          of a model with several: who speaks --text or --phonemes
--out DIR!              folder for wav/, mel/, manifest.tsv and run.json
--data DIR              folder with config.yaml (default: the training's, if any)
--eos-threshold P:float = 0.5  probability that ends a sentence
--max-steps N:int = 1000  decoder steps at most
--batch-size N:int = 16  sentences at a time
--plots N:int = 0       draw spectrogram, alignment and end of the first N sentences
--hifigan CHECKPOINT CONFIG  vocoder instead of Griffin-Lim
--iterations N:int = 32  of Griffin-Lim
--model-overrides DICT = {}  options saved with the model, replaced, as in "{'length_predictor': 'lookup'}"
--seed N:int = 1        of the pre-net dropout, active at inference
--cpu                   even where there is a GPU
"""


def run(args: argparse.Namespace, training: Training | None = None) -> int:
    """Synthesise and write one sentence after the other; the output of an interrupted run is kept.

    Raises LeapformerError for options that need `training` where there is none.
    """
    with owned(args.out):
        return _run(args, training)


def _run(args: argparse.Namespace, training: Training | None) -> int:
    _check(args)
    if training is None:
        for option, given in (("--subset", args.subset), ("--data", args.data), ("--hifigan", args.hifigan)):
            if given:
                raise LeapformerError(f"{option} is an option of `leapformer tts`; {INSTALL}")
    voice = _voice(args, training)
    mels = MelConfig.from_features(voice.data["features"])
    scripts = _scripts(args, voice, training)
    vocode = training.hifigan(*args.hifigan) if training and args.hifigan else GriffinLim(mels, args.iterations)
    folder, rows = _begin(args.out, _description(args, voice))
    manner = Manner(args.eos_threshold, args.max_steps, args.batch_size, args.seed, args.plots)
    done = {row["id"] for row in rows}
    with progress("speech", "sentence") as watch:
        watch(len(done), len(scripts))
        for script, utterance in voice.speak(scripts, manner, done):
            rows.append(_write(folder, script, utterance, vocode, mels.sample_rate))
            if training and utterance.alignment is not None:
                (folder / "plots").mkdir(exist_ok=True)
                training.draw(utterance, script, folder / "plots" / f"{script.id}.svg")
            watch(len(rows), len(scripts))
    stopped = sum(int(row["stopped"]) for row in rows)
    print(f"{len(rows)} sentences in {folder}; {stopped} of them ended by themselves")
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.speaker is not None and args.subset:
        raise LeapformerError(f"--speaker {args.speaker}: --subset names the speaker of each sentence; leave it out")
    if not 0 < args.eos_threshold < 1:
        raise LeapformerError(f"--eos-threshold {args.eos_threshold}: give a probability between 0 and 1")
    for name, least in (("max_steps", 1), ("batch_size", 1), ("iterations", 1), ("plots", 0)):
        if getattr(args, name) < least:
            raise LeapformerError(f"{flag(name)} {getattr(args, name)}: give a number from {least}")


def _overrides(text: str) -> dict[str, Any]:
    try:
        overrides = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        overrides = None
    if not isinstance(overrides, dict):
        raise LeapformerError(
            f"--model-overrides {text}: give a dictionary, as in \"{{'length_predictor': 'lookup'}}\""
        )
    return overrides


def _voice(args: argparse.Namespace, training: Training | None) -> Voice:
    """The checkpoint, or exported folder, that speaks."""
    overrides = _overrides(args.model_overrides)
    if not Path(args.path).is_dir():
        if training is None:
            raise LeapformerError(f"{args.path} is no folder; give one made by `leapformer export`")
        return training.voice(args, overrides)
    if overrides:
        raise LeapformerError(f"--model-overrides {overrides}: an exported model stays as it is; export it so")
    if args.plots:
        raise LeapformerError(f"--plots {args.plots}: an exported model does not tell what it attends to; leave it out")
    manifests = training.manifests(args.data) if training and args.data else None
    return ExportedVoice(Folder.read(args.path), manifests)


def _scripts(args: argparse.Namespace, voice: Voice, training: Training | None) -> list[Script]:
    """What to say; names are those of the manifest, or numbers."""
    if training and args.subset:
        if voice.manifests is None:
            raise LeapformerError(f"--subset {args.subset}: an exported model does not know its data; give --data, too")
        scripts = training.scripts(voice.manifests, args.subset, voice.speakers)
    else:
        speaker = _speaker(args.speaker, voice.speakers)
        lines = _lines(args.phonemes if args.text is None else args.text)
        said = lines if args.text is None else phonemes_of(lines, voice.data)
        scripts = [
            Script(f"{number:04d}", phonemes, line, speaker)
            for number, (phonemes, line) in enumerate(zip(said, lines, strict=True), 1)
        ]
    for script in scripts:  # before anything is written: an unknown phoneme is said at once
        voice.numbers(script)
    return scripts


def _speaker(name: str | None, speakers: Mapping[str, int] | None) -> int:
    """The number of who speaks: by default the first of all."""
    if name is None:
        return 0
    if speakers is None or name not in speakers:
        known = ", ".join(list(speakers)[:20]) if speakers else "one speaker, without a name; leave it out"
        raise LeapformerError(f"--speaker {name}: the model knows {known}")
    return speakers[name]


def _lines(file_or_text: str) -> list[str]:
    """The lines of a file, or the text, with single spaces: a tab would end a column of the manifest."""
    lines = lines_or_text(file_or_text)
    if not lines:
        raise LeapformerError(f"{file_or_text} is empty; give sentences, a line each")
    return [" ".join(line.split()) for line in lines]


def _description(args: argparse.Namespace, voice: Voice) -> dict[str, Any]:
    """What makes this run the one it is, for run.json."""
    what = ("path", "data", "subset", "phonemes", "text", "speaker", "model_overrides")
    how = ("eos_threshold", "max_steps", "batch_size", "seed", "hifigan", "iterations")
    return {
        "options": {name: getattr(args, name) for name in (*what, *how)},
        "model": voice.origin,
        "features": voice.data["features"],
    }


def _begin(out: str, about: dict[str, Any]) -> tuple[Path, list[dict[str, str]]]:
    """The folder of this run, and the rows it already has; a folder without rows is not locked yet."""
    header, manifest = "\t".join(COLUMNS) + "\n", Path(out) / "manifest.tsv"
    if manifest.is_file() and manifest.read_bytes() == header.encode():
        (Path(out) / RECORD).unlink(missing_ok=True)
    folder = locked_folder(out, RECORD, about, "run", signature(**about["options"]), among_others=True)
    if not manifest.is_file():
        write_text(manifest, header)
    return folder, [row for _, row in read_table(manifest)]


def _write(folder: Path, script: Script, utterance: Utterance, vocode: Vocoder, rate: int) -> dict[str, Any]:
    """wav/ and mel/ of one sentence, then its row of the manifest: a row means that both are there."""
    wav, mel = folder / "wav" / f"{script.id}.wav", folder / "mel" / f"{script.id}.npy"
    for path in (wav, mel):
        path.parent.mkdir(exist_ok=True)
    np.save(mel, utterance.frames)
    soundfile.write(str(wav), vocode(utterance.frames).clip(-1, 1), rate, subtype="PCM_16")
    per_step = len(utterance.frames) // len(utterance.ended)
    row = {
        "id": script.id,
        "text": script.text,
        "audio": str(wav.relative_to(folder)),
        "frames": len(utterance.frames),
        "stopped": int(utterance.stopped),
        "reference": "" if script.recording is None else str(script.recording.absolute()),
        "reference_frames": "" if script.frames is None else script.frames,
        "predicted_frames": "" if utterance.predicted is None else f"{utterance.predicted * per_step:g}",
    }
    with (folder / "manifest.tsv").open("a", encoding="utf-8") as file:
        file.write("\t".join(str(row[name]) for name in COLUMNS) + "\n")
    return row

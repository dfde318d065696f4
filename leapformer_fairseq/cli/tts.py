"""`leapformer tts`: speak text, phonemes or a manifest with a trained model."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..runtime.acoustics.vocoder import Vocoder
from ..runtime.commands import tts
from ..runtime.commands.tts import OPTIONS as OPTIONS
from ..runtime.spoken import Manifests, Script, Utterance, Voice
from ..support.files import paths_beside


def run(args: Namespace) -> int:
    """Speak with an exported model or a checkpoint."""
    return tts.run(args, _Training())


class _Training:
    """`tts.Training` with the rest of this package, each part imported when an option asks for it."""

    def voice(self, args: Namespace, overrides: dict[str, Any]) -> Voice:
        from ..models.synthesis import TrainedVoice

        return TrainedVoice(args.path, {**overrides, **({"data": args.data} if args.data else {})}, args.cpu)

    def manifests(self, data: str) -> Manifests:
        from ..data.manifests import read_yaml
        from ..data.tts import CONFIG

        folder = Path(data)
        return Manifests(folder, Path(str(paths_beside(read_yaml(folder / CONFIG), folder).get("audio_root", ""))))

    def scripts(self, manifests: Manifests, subset: str, speakers: Mapping[str, int] | None) -> list[Script]:
        from ..data.tts import scripts_of

        return scripts_of(manifests, subset, speakers)

    def hifigan(self, checkpoint: str, config: str) -> Vocoder:
        from ..models.hifigan import load_hifigan

        return load_hifigan(checkpoint, config)

    def draw(self, utterance: Utterance, script: Script, path: Path) -> None:
        from ..scoring.pictures.heatmaps import draw_utterance

        draw_utterance(utterance, script, path)

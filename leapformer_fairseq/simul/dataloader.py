"""Speech for SimulEval, checked when it is loaded.

SimulEval's own loader decodes every file three times and fails on a broken one without naming it. Importing this module
replaces it with ours; `agent` does so.
"""

from __future__ import annotations

from pathlib import Path

from simuleval.data.dataloader import SpeechToTextDataloader, register_dataloader

from ..runtime.audio import read_speech
from ..support.errors import LeapformerError


@register_dataloader("speech-to-text")
class CheckedSpeechDataloader(SpeechToTextDataloader):
    """16 kHz mono recordings with their references. All of them are loaded before the first is translated."""

    def __init__(self, source_list: list[str], target_list: list[str], tgt_lang_list: list[str] | None = None) -> None:
        if len(source_list) != len(target_list):
            raise LeapformerError(
                f"--source lists {len(source_list)} recordings, --target {len(target_list)} references; "
                "give one for each"
            )
        super().__init__(source_list, target_list, tgt_lang_list)
        self._last: tuple[str, list[float]] | None = None

    def preprocess_source(self, source: Path | str) -> list[float]:
        """Samples in [-1, 1]. Raises LeapformerError for a file that is missing, broken, not mono or not 16 kHz."""
        name = str(source)
        if self._last is None or self._last[0] != name:
            self._last = name, read_speech(name).tolist()
        return self._last[1]

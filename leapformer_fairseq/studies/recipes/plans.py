"""The notation of recipes for attention: a plan for each block, and options of the mechanisms."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

from ...scoring.names import WHOLE_SOURCE, plan_title
from ...support.errors import LeapformerError
from .facts import BLOCKS, CHUNKS, WAIT, WAIT_CROSS, WHOLE, are_served, mask_of
from .options import Parser


@dataclass(frozen=True)
class Attention:
    """A mechanism or plan for all blocks, or ENCODER/DECODER/CROSS, with options after colons.

    Examples: luna:luna-length=32 or softmax/abc-mlp/abc-mlp:abc-slots=32/8/32.
    """

    text: str

    @property
    def plan(self) -> str:
        """The plan without options."""
        return self.text.partition(":")[0]

    @property
    def blocks(self) -> tuple[str, ...]:
        """The plans of the three blocks."""
        plans = self.plan.split("/")
        return (*plans, *[plans[-1]] * 3)[:3]

    @property
    def options(self) -> list[str]:
        """The options as command-line words."""
        return [word for name, value in self._parsed for word in (f"--{name}", *([value] if value else []))]

    @property
    def _parsed(self) -> list[tuple[str, str | None]]:
        """Names of the options without dashes, and values; None for a flag."""
        parts = (option.partition("=") for option in self.text.split(":")[1:])
        return [(name, value if equals else None) for name, equals, value in parts]

    def check(self, masks: Mapping[str, str], configured: Mapping[str, str | None] | None = None) -> None:
        """Raise LeapformerError for a plan with which no model can be built; `masks` names those of the model's blocks.

        `configured` are other options of the training by name; options after colons override them.
        """
        parts = self.plan.count("/") + 1
        if parts > len(masks):
            raise LeapformerError(f"{self.text}: {parts} plans for {', '.join(masks)}; give at most {len(masks)}")
        every = len(masks) == len(BLOCKS)
        plans = dict(zip(BLOCKS, self.blocks, strict=True)) if every else dict.fromkeys(masks, self.plan)
        try:
            if self._parsed or not are_served(plans, masks, configured or {}):
                self._check_plans(plans, masks, configured or {})
            self._check_encoder()
        except LeapformerError as error:
            raise LeapformerError(f"--attention {self.text}: {error}") from None

    def _check_plans(
        self, plans: Mapping[str, str], masks: Mapping[str, str], configured: Mapping[str, str | None]
    ) -> None:
        from ...attention import OPTIONS  # imports torch, which takes seconds
        from ...modules.plan import check_plans

        before = [(name, value) for name, value in configured.items() if name.replace("-", "_") in OPTIONS]
        of_blocks = {block: mask_of(mask) for block, mask in masks.items()}
        check_plans(plans, [*before, *self._parsed], of_blocks, _model_options)

    def _check_encoder(self) -> None:
        """Raise LeapformerError for options of encoder chunks with which no model can be built."""
        words = [f"--{option}" for option in self.text.split(":")[1:] if option.startswith("encoder-")]
        if not words:
            return
        from ...models.streaming_encoder import add_chunk_args, chunks_of, fill_chunk_args

        parser = Parser()
        add_chunk_args(parser)
        settings = parser.parse_known_args(words)[0]
        fill_chunk_args(settings)
        chunks_of(settings)

    def wait_k_masks(self) -> dict[str, str]:
        """The names of the masks of a wait-k model's blocks; the encoder may be a streaming one."""
        streams = any(word in ("--encoder-causal", "--encoder-chunk-ms") for word in self.options)
        return dict(zip(BLOCKS, (CHUNKS if streams else WHOLE, WAIT, WAIT_CROSS), strict=True))

    @property
    def encoder(self) -> Attention:
        """The encoder's plan and options, as attention of all blocks."""
        return Attention(self.blocks[0] + self._tail)

    @property
    def recogniser(self) -> Attention:
        """The same encoder with a softmax decoder, for pre-training encoders."""
        return Attention(f"{self.blocks[0]}/softmax{self._tail}")

    @property
    def _tail(self) -> str:
        return self.text[len(self.plan) :]

    @property
    def flags(self) -> list[str]:
        """The plans of the three blocks and the options, as command-line words."""
        plans = zip(BLOCKS, self.blocks, strict=True)
        return [word for block, plan in plans for word in (f"--{block}-attention", plan)] + self.options

    @property
    def title(self) -> str:
        """The name in reports."""
        return plan_title(self.text, WHOLE_SOURCE, chunk_length=False)

    @property
    def needs_length(self) -> bool:
        """Whether a decoder block has a mechanism that needs the target length."""
        return any("cosformer" in plan for plan in self.blocks[1:])

    @property
    def guesses_length(self) -> bool:
        """Whether this mechanism guesses unknown lengths, in steps of `--cosformer-step`."""
        return self.needs_length and any(name == "cosformer-step" and value != "0" for name, value in self._parsed)

    @property
    def folder(self) -> str:
        """The folder name of runs with this attention."""
        return self.text.translate(str.maketrans("/,*:=", "+____"))

    def run_folder(self, seed: int) -> str:
        """The folder name of a training run with this seed."""
        return f"{self.folder}-seed{seed}"


def _model_options() -> set[str]:
    """The names of the options of all our models, without dashes."""
    from fairseq.models import MODEL_REGISTRY

    from ... import register

    register()
    parser = argparse.ArgumentParser(conflict_handler="resolve", add_help=False)
    for name, model in MODEL_REGISTRY.items():
        if name.startswith("leapformer_"):
            model.add_args(parser)
    return {flag.lstrip("-") for action in parser._actions for flag in action.option_strings}

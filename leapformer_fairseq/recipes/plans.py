"""How recipes describe attention: a plan for each block, and options of its mechanisms."""

from __future__ import annotations

from dataclasses import dataclass

BLOCKS = ("encoder-self", "decoder-self", "decoder-cross")


@dataclass(frozen=True)
class Attention:
    """One mechanism or plan for all blocks, or ENCODER/DECODER/CROSS; options follow after colons.

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
        given = self.plan.split("/")
        return (*given, *[given[-1]] * 3)[:3]

    @property
    def options(self) -> list[str]:
        """The options as command-line words."""
        pairs = (option.partition("=") for option in self.text.split(":")[1:])
        return [word for name, _, value in pairs for word in (f"--{name}", *([value] if value else []))]

    @property
    def encoder(self) -> Attention:
        """The encoder's plan, used in all blocks."""
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
    def needs_length(self) -> bool:
        """Whether a decoder block has a mechanism that needs the target's length."""
        return any("cosformer" in plan for plan in self.blocks[1:])

    @property
    def folder(self) -> str:
        """The folder name of a run with this attention."""
        return self.text.translate(str.maketrans("/,*:=", "+____"))

    def run_folder(self, seed: int) -> str:
        """The folder name of a training run with this seed."""
        return f"{self.folder}-seed{seed}"

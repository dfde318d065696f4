"""Human names of systems: `gated LeaPformer, encoder in chunks` instead of `gated-leap:encoder-chunk-ms=280`."""

from __future__ import annotations

import re

MECHANISMS = {
    "leap": "LeaPformer",
    "gated-leap": "gated LeaPformer",
    "cosformer": "cosFormer",
    "relu": "ReLU attention",
    "gated-relu": "gated ReLU attention",
    "elu": "ELU attention",
    "abc-mlp": "ABC (MLP)",
    "luna": "Luna",
}
_BLOCKS = ("encoder-self", "decoder-self", "decoder-cross")
_WHOLE, _CHUNKS, _CAUSAL = "encoder sees the whole source", "encoder in chunks", "causal encoder"


def attention_title(text: str, chunk_length: bool = False) -> str:
    """Name a plan with its options, as given to `--attention`; `chunk_length` adds the duration of chunks."""
    plan, *options = text.split(":")
    mechanisms = [MECHANISMS.get(name, name) for name in plan.split("/")]
    mechanisms = mechanisms[:1] if len(set(mechanisms)) == 1 else mechanisms
    encoder, others = _WHOLE, []
    for option in options:
        name, _, value = option.partition("=")
        if name == "encoder-chunk-ms":
            encoder = _CHUNKS + (f" of {value} ms" if chunk_length else "")
        elif name == "encoder-causal":
            encoder = _CAUSAL
        else:
            others.append(" ".join(filter(None, (name.replace("-", " "), value))))
    return ", ".join([" / ".join(mechanisms), encoder, *others])


def run_title(name: str, options: str) -> str:
    """Name the run in the folder `name` with these options: plan, training k, a seed other than 1, test set."""
    words = dict(re.findall(r"--([\w-]+)[ =]([^\s-]\S*)", options))
    plan = words.get("attention")
    if plan is None:
        plans = [words.get(f"{block}-attention", "") for block in _BLOCKS]
        if not all(plans):
            return name
        chunk = f":encoder-chunk-ms={words['encoder-chunk-ms']}" if "encoder-chunk-ms" in words else ""
        plan = "/".join(plans) + chunk + (":encoder-causal" if "--encoder-causal" in options.split() else "")
    trained = f"trained for k = {words['train-k']}" if "train-k" in words else ""
    seed = f"seed {words['seed']}" if words.get("seed", "1") != "1" else ""
    _, _, test_set = name.partition("/")
    return ", ".join(filter(None, (attention_title(plan), trained, seed, test_set)))

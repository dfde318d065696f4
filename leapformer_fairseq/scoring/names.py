"""Human names of systems: `gated LeaPformer, encoder in chunks of 280 ms` for `gated-leap:encoder-chunk-ms=280`."""

from __future__ import annotations

import re

MECHANISMS = {
    "softmax": "softmax", "sdpa": "SDPA", "linear": "linear attention", "local": "local attention",
    "leap": "LeaPformer", "gated-leap": "gated LeaPformer", "cosformer": "cosFormer", "relu": "ReLU attention",
    "gated-relu": "gated ReLU attention", "elu": "ELU attention", "rope": "ELU with RoPE", "rfa": "RFA",
    "rfa-gate": "gated RFA", "t2r": "T2R", "taylor": "Taylor attention", "abc-mlp": "ABC (MLP)",
    "abc-linformer": "ABC (Linformer)", "bigbird": "BigBird", "s4d": "S4D", "sparse-transformer": "Sparse Transformer",
    "retention": "retention", "gla": "GLA", "simple-gla": "simple GLA", "hgrn2": "HGRN2", "delta": "DeltaNet",
    "gated-delta": "gated DeltaNet", "kda": "KDA", "entmax": "entmax", "entmax-bigbird-blocks": "BigBird's blocks",
    "sparsefinder-block1": "Sparsefinder, blocks 1", "sparsefinder-block2": "Sparsefinder, blocks 2",
    **{f"abc-{kind}": f"ABC ({kind})" for kind in ("cluster", "pool", "random", "global", "window", "dilated")},
    **{f"entmax-{x.lower()}": f"entmax, {x}" for x in ("window", "routing", "Longformer", "BigBird", "Reformer")},
    **{f"sparsefinder-{x.replace('-', '')}": f"Sparsefinder, {x}" for x in ("distance", "k-means", "quantize")},
    **{
        name: name.capitalize()
        for name in (
            "hedgehog", "linformer", "longformer", "luna", "performer", "reformer", "sinkhorn", "skyformer",
            "synthesizer",
        )
    },
}  # fmt: skip
_BLOCKS = ("encoder-self", "decoder-self", "decoder-cross")
WHOLE_SOURCE = "encoder sees the whole source"
_CHUNKS, _CAUSAL = "encoder in chunks", "causal encoder"
_OPTION = re.compile(r"_([a-z][a-z-]*)(?:_([0-9.]+))?")
_FOLDER = re.compile(rf"([a-z0-9+-]+?)((?:{_OPTION.pattern})*)(?:-k(?P<k>\d+))?(?:-seed(?P<seed>\d+))?")


def plan_title(text: str, whole: str = "", chunk_length: bool = True) -> str:
    """Name a plan with its options, as given to `--attention`, or the folder that was named after it.

    `whole` is said of an encoder without chunks. The duration of chunks is left out without `chunk_length`. Of other
    text, only a mechanism that it begins with is named.
    """
    about = re.match(r"([a-z0-9-]+)([ ,].*)", text)
    if about:
        return MECHANISMS.get(about[1], about[1]) + about[2]
    text, rest = _unfolded(text)
    mechanisms: list[str] = []
    encoder, others = whole, []
    for part in re.split(r"/(?=[a-z])", text):  # a number after a slash belongs to an option, as in abc-slots=32/8/32
        name, *options = part.split(":")
        mechanisms.append(MECHANISMS.get(name, name))
        for option in options:
            name, _, value = option.partition("=")
            if name == "encoder-chunk-ms":
                encoder = _CHUNKS + (f" of {value} ms" if chunk_length else "")
            elif name == "encoder-causal":
                encoder = _CAUSAL
            else:
                family, _, short = name.partition("-")
                name = short if text.startswith(family) or f"/{family}" in text else name
                others.append(" ".join(filter(None, (name.replace("-", " "), value))))
    mechanisms = mechanisms[:1] if len(set(mechanisms)) == 1 else mechanisms
    return ", ".join(filter(None, [" / ".join(mechanisms), encoder, *others, *rest]))


def _unfolded(text: str) -> tuple[str, list[str]]:
    """The plan that a folder is named after (`Attention.folder`), and what else its name says."""
    parts = _FOLDER.fullmatch(text)
    if parts is None or not set(parts[1].split("+")) <= set(MECHANISMS):
        return text, []
    options = [f":{name}={value}".rstrip("=") for name, value in _OPTION.findall(parts[2])]
    rest = [f"trained for k = {parts['k']}"] if parts["k"] else []
    return parts[1].replace("+", "/") + "".join(options), rest + ([f"seed {parts['seed']}"] if parts["seed"] else [])


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
    return ", ".join(filter(None, (plan_title(plan, WHOLE_SOURCE, False), trained, seed, test_set)))

"""What is frozen: small models that together hold every mechanism, block and option.

The flags are those that `fairseq-train` got. The fixtures hold them too; whoever only reads fixtures needs none of
this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BLOCKS = ("encoder-self", "decoder-self", "decoder-cross")
# What each mechanism can serve, as words of BLOCKS; all others serve all three.
SERVES = {
    "abc-cluster": ("encoder-self", "decoder-cross"),
    "abc-window": ("decoder-self",),
    "abc-dilated": ("decoder-self",),
}
MECHANISMS = (
    *("softmax", "relu", "elu", "cosformer", "leap", "rope", "abc-mlp", "abc-linformer", "abc-random"),
    *("abc-global", "abc-pool", "abc-cluster", "abc-window", "abc-dilated", "luna"),
)
ABC = "--abc-slots 4/3/5 --abc-pool-size 0/8/0 --abc-max-length 64"
WAITK = "--waitk-lagging 3 --fixed-pre-decision-ratio 4"
CHUNKS = "--encoder-chunk-ms 160 --encoder-right-context-ms 80 --encoder-past-ms 400"
CTC = "--criterion label_smoothed_cross_entropy_with_ctc --ctc-weight 0.3"
TRAINED: dict[str, Any] = {}  # a stream with the policy of training


@dataclass(frozen=True)
class Case:
    """One model: its `kind` says the architecture, the task and the inputs.

    `streams` are the ways in which an agent translates with it: names of PolicyOptions' fields and their values, and
    `pre_decision_ratio` and `engine`, arguments of `load_system`.
    """

    kind: str
    flags: str
    streams: tuple[dict[str, Any], ...] = ()


def plan(encoder: str | None = None, decoder: str | None = None, cross: str | None = None) -> str:
    """The flags of a plan; blocks that are not named have none."""
    given = zip(BLOCKS, (encoder, decoder, cross), strict=True)
    return " ".join(f"--{block}-attention {value}" for block, value in given if value)


def everywhere(mechanism: str) -> str:
    """A plan with the mechanism in every block that it serves, softmax in the others."""
    serves = SERVES.get(mechanism, BLOCKS)
    return plan(*(mechanism if block in serves else "softmax" for block in BLOCKS))


def _nmt() -> dict[str, Case]:
    """Each mechanism alone, then options and mixed plans."""
    wide = "--encoder-embed-dim 16 --decoder-embed-dim 16"  # proportion networks and rotations need some room
    own = {"cosformer": "--cosformer-length 9", "leap": wide, "rope": wide}
    plans = {name: f"{everywhere(name)} {ABC} {own.get(name, '')}" for name in MECHANISMS}
    plans["mixed"] = f"{plan('softmax,leap', 'luna,abc-window', 'abc-cluster,relu')} {ABC} --luna-packed learned"
    plans["cosformer-ratio"] = f"{everywhere('cosformer')} --length-predictor ratio"
    plans["leap-per-head"] = f"{everywhere('leap')} --leap-per-head --normalizer-floor 0.1 {wide}"
    plans["abc-untied"] = f"{plan('abc-mlp', 'abc-linformer', 'abc-mlp')} {ABC} --abc-untied --abc-activation relu"
    plans["abc-literal"] = f"{plan('abc-mlp', 'abc-random', 'abc-mlp')} {ABC} --abc-empty-slots literal --abc-seed 5"
    plans["luna-untied"] = f"{everywhere('luna')} --luna-projections untied --luna-length 5"
    plans["luna-standard"] = f"{everywhere('luna')} --luna-projections standard --luna-packed learned --luna-length 5"
    return {f"nmt-{name}": Case("nmt", flags) for name, flags in plans.items()}


def _lm() -> dict[str, Case]:
    linear = "softmax,relu,elu,rope,leap,cosformer"
    bounded = "abc-mlp,abc-linformer,abc-random,abc-global,abc-pool,abc-window,abc-dilated,luna"
    plans = {
        "linear": f"{plan(None, linear)} --decoder-layers 6 --cosformer-length 64 --rope-dims 4",
        "bounded": f"{plan(None, bounded)} --decoder-layers 8 --tokens-per-sample 24 {ABC}",
        "leap-without-positions": f"{plan(None, 'leap')} --leap-per-head --no-token-positional-embeddings",
        "leap-adaptive": f"{plan(None, 'softmax,leap')} --adaptive-input --adaptive-input-cutoff 12 "
        "--adaptive-softmax-cutoff 12 --tie-adaptive-weights --adaptive-input-factor 2 --adaptive-softmax-factor 2",
        "cosformer-overrun": f"{plan(None, 'cosformer')} --cosformer-length 32 --cosformer-overrun extrapolate",
        "options": f"{plan(None, 'luna,abc-mlp,abc-mlp')} {ABC} --decoder-layers 3 --luna-activation softplus2 "
        "--luna-length 4 --abc-untied --abc-activation sigmoid --tokens-per-sample 24",
    }
    return {f"lm-{name}": Case("lm", flags) for name, flags in plans.items()}


def _mlm() -> dict[str, Case]:
    bounded = "abc-mlp,abc-linformer,abc-random,abc-global,abc-pool,abc-cluster,luna"
    plans = {
        "linear": f"{plan('softmax,relu,elu,cosformer,leap,rope')} --encoder-layers 6",
        "bounded": f"{plan(bounded)} --encoder-layers 7 {ABC} --pooling mean",
        "luna-packed": f"{plan('luna')} --pooling packed --luna-length 4",
        "luna-untied": f"{plan('softmax,luna')} --pooling packed --luna-projections untied --luna-fixed-length",
    }
    return {f"mlm-{name}": Case("mlm", flags) for name, flags in plans.items()}


def _s2t() -> dict[str, Case]:
    wait: dict[str, Any] = {"k": 2, "pre_decision_ratio": 4}
    offline: dict[str, Any] = {"name": "offline", "pre_decision_ratio": 4}
    return {
        "s2t-leap": Case("s2t", f"{everywhere('leap')} --leap-per-head", (wait, offline)),
        "s2t-mixed": Case("s2t", f"{plan('softmax,leap', 'leap,softmax', 'rope,elu')} {CTC}", (wait,)),
        "s2t-cosformer-ratio": Case("s2t", f"{everywhere('cosformer')} --length-predictor ratio"),
        "s2t-causal": Case(
            "s2t",
            f"{plan('leap,relu', 'abc-window,leap', 'leap,softmax')} --encoder-causal {ABC}",
            (wait, {"name": "local-agreement", "pre_decision_ratio": 4}, {"name": "hold-n", "pre_decision_ratio": 4}),
        ),
        "s2t-bounded": Case(
            "s2t",
            f"{plan('abc-linformer,abc-pool', 'abc-random,abc-dilated', 'abc-cluster,abc-global')} {ABC}",
            (wait,),
        ),
        "s2t-luna": Case("s2t", f"{everywhere('luna')} --luna-length 6", (offline,)),
    }


def _simulst() -> dict[str, Case]:
    aligned: dict[str, Any] = {"name": "alignatt", "align_frames": 2, "pre_decision_ratio": 3}
    linear, bounded = "softmax,relu,elu,leap,rope", "abc-mlp,abc-random,abc-linformer,abc-pool"
    learned = "--luna-packed learned --luna-length 5"
    multipath = "--waitk-lagging 1-9 --fixed-pre-decision-ratio 1"
    flags = {
        "whole": f"{everywhere('leap')} {WAITK}",
        "whole-softmax": f"{everywhere('softmax')} {multipath}",
        "causal": f"{plan('leap', 'leap', 'leap')} {WAITK} --encoder-causal",
        "causal-linear": f"{plan(linear, 'elu,rope', 'softmax,rope')} {WAITK} --encoder-causal --encoder-layers 5",
        "chunks": f"{plan('softmax,leap', 'softmax,leap', 'relu,leap')} {WAITK} {CHUNKS}",
        "chunks-multipath": f"{plan('leap', 'cosformer', 'elu,softmax')} {multipath} {CHUNKS} --cosformer-length 24",
        "chunks-linear": f"{plan(linear, 'relu,abc-pool', 'softmax,elu')} {WAITK} {CHUNKS} --encoder-layers 5 {ABC}",
    }
    cases = {name: Case("simulst", text, (TRAINED,)) for name, text in flags.items()}
    for name in ("causal", "chunks-multipath", "whole-softmax"):
        cases[name] = Case("simulst", flags[name], (TRAINED, aligned, {"k": 2}))
    arriving = f"{plan(bounded, 'luna,abc-mlp', 'leap')} {WAITK} --encoder-causal --encoder-layers 4 {ABC} {learned}"
    cases["causal-bounded"] = Case("simulst", f"{arriving} --abc-pool-size 16/8/0", (TRAINED,))
    whole = f"{plan('luna,abc-cluster', 'abc-random,abc-global', 'elu,relu')} {WAITK} {ABC} {learned}"
    cases["whole-bounded"] = Case("simulst", whole, (TRAINED,))
    return {f"simulst-{name}": case for name, case in cases.items()}


def _tts() -> dict[str, Case]:
    plans = {
        "leap": everywhere("leap"),
        "linear": plan("relu,elu", "rope,leap", "elu,softmax"),
        "cosformer-ratio": f"{everywhere('cosformer')} --length-predictor ratio",
        "cosformer-lookup": f"{plan('softmax', 'cosformer', 'cosformer')} --length-predictor lookup",
        "cosformer-conv": f"{plan('softmax', 'cosformer', 'leap')} --length-predictor conv --length-hidden 8",
        "bounded": f"{plan('abc-mlp,abc-cluster', 'abc-mlp,abc-window', 'abc-mlp,abc-pool')} {ABC}",
        "luna": f"{everywhere('luna')} --luna-length 4",
    }
    return {f"tts-{name}": Case("tts", flags) for name, flags in plans.items()}


CASES: dict[str, Case] = {**_lm(), **_mlm(), **_nmt(), **_s2t(), **_simulst(), **_tts()}

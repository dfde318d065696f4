"""Times this checkout against another one, in one process: `python scripts/before_after.py OTHER [--out FILE]`.

Both packages are loaded side by side (inside the package every import is relative). Each row is measured interleaved,
on one thread; a ratio above 1 means that this checkout is faster.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import soundfile
import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerDecoder
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent.parent
B, H, D = 1, 8, 32
LIMITED = ("abc-linformer", "abc-pool", "synthesizer")  # to fewer tokens than the longest case
SLOW = ("reformer", "s4d", "sinkhorn", "skyformer")  # enough of one length
Rows = dict[str, Callable[[], None]]


def loaded(root: Path, name: str) -> ModuleType:
    """The package of a checkout under another name."""
    init = root / "leapformer_fairseq" / "__init__.py"
    spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[str(init.parent)])
    if spec is None or spec.loader is None or not init.is_file():
        raise SystemExit(f"no checkout at {root}; give the folder that holds leapformer_fairseq/")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def mechanisms(package: str) -> Iterator[tuple[str, Rows]]:
    """Forward, forward with backward, and one decoding step, of each mechanism."""
    attention = importlib.import_module(f"{package}.attention")
    for name in attention.MECHANISMS:
        if name.startswith(("sparsefinder", "entmax")):
            continue
        for block, mask in (("encoder-self", None), ("decoder-self", attention.CAUSAL)):
            options = {"cosformer_length": 8192} if name == "cosformer" else {}
            torch.manual_seed(1)
            mechanism = attention.build(name, D, H, block=block, **options)
            if mechanism.capabilities.unsupported_reason(block, mask) or mechanism.capabilities.carry_is_given:
                continue
            for length in (64, 1024, 8192):
                few = name in (*SLOW, *LIMITED) or not mechanism.capabilities.constant_state
                if length > 1024 and few:
                    continue
                yield f"{name}, {block}, {length}", _whole(attention, mechanism, mask, length)
            if block == "decoder-self" and mechanism.capabilities.constant_state:
                yield f"{name}, one step", {"step": _step(attention, mechanism)}


def _whole(attention: Any, mechanism: Any, mask: Any, length: int) -> Rows:
    q, k, v = (torch.randn(B, H, length, D, requires_grad=True) for _ in range(3))
    tokens = attention.TokenInfo.whole(length)
    tokens = type(tokens)(tokens.positions, tokens.lengths, inputs=torch.randn(B, length, H * D))

    def forward() -> None:
        with torch.no_grad():
            mechanism.eval()(q, k, v, query=tokens, key=tokens, mask=mask)

    def train() -> None:
        out: Tensor = mechanism.train()(q, k, v, query=tokens, key=tokens, mask=mask)
        out.sum().backward()

    return {"forward": forward, "train": train}


def _step(attention: Any, mechanism: Any) -> Callable[[], None]:
    projections = attention.Projections(*(nn.Linear(H * D, H * D) for _ in range(4)))
    step = attention.step_of(mechanism, projections) if hasattr(attention, "step_of") else mechanism.step(projections)
    x = torch.randn(5, H * D)
    tokens = attention.TokenInfo(torch.ones(1, 0, dtype=torch.long), inputs=x.unsqueeze(1)[:, :0])
    state = mechanism.eval().init_state(5, D, x, tokens, attention.CAUSAL)

    def run() -> None:
        with torch.no_grad():
            for position in range(1, 101):
                step(x, state, position)

    return run


def decoders(package: str) -> Iterator[tuple[str, Rows]]:
    """Whole decoders: 20 tokens of 5 hypotheses after a source of 50, and a training step."""
    modules = importlib.import_module(f"{package}.modules")
    for plan in ("softmax", "leap", "gated-leap", "gated-delta", "abc-mlp", "hedgehog"):
        torch.manual_seed(1)
        words = Dictionary()
        for word in range(1000):
            words.add_symbol(str(word))
        args = Namespace(
            decoder_embed_dim=256, decoder_ffn_embed_dim=512, decoder_layers=3, decoder_attention_heads=8,
            decoder_embed_path=None, decoder_input_dim=256, decoder_output_dim=256, encoder_embed_dim=256,
            share_decoder_input_output_embed=True, max_target_positions=1024, dropout=0.0, attention_dropout=0.0,
            decoder_self_attention=plan, decoder_cross_attention=plan, decoder_learned_pos=False,
        )  # fmt: skip
        modules.fill_attention_args(args, plan="softmax")
        decoder = TransformerDecoder(args, words, nn.Embedding(len(words), 256, words.pad()))
        modules.swap_attention(decoder, "decoder", args)
        yield (
            f"decoder with {plan}",
            {"decode": _decoding(decoder, len(words)), "train": _training(decoder, len(words))},
        )


def _decoding(decoder: Any, words: int) -> Callable[[], None]:
    source = {"encoder_out": [torch.randn(50, 5, 256)], "encoder_padding_mask": []}
    tokens = torch.randint(4, words, (5, 21))

    def run() -> None:
        decoder.eval()
        memory: dict[str, Any] = {}
        with torch.no_grad():
            for count in range(1, 21):
                decoder(tokens[:, :count], source, incremental_state=memory)

    return run


def _training(decoder: Any, words: int) -> Callable[[], None]:
    source = {"encoder_out": [torch.randn(50, 8, 256)], "encoder_padding_mask": []}
    tokens = torch.randint(4, words, (8, 60))

    def run() -> None:
        decoder.train()
        decoder(tokens, source)[0].sum().backward()

    return run


def sessions(package: str) -> Iterator[tuple[str, Rows]]:
    """The recording of `leapformer demo`, live in pieces of 40 ms, by the exported model of this checkout."""
    simul = "runtime.simul" if importlib.util.find_spec(f"{package}.runtime.simul") else "agents"
    session, exported, stream, policy = (
        importlib.import_module(f"{package}.{simul}.{name}") for name in ("session", "exported", "stream", "policy")
    )
    demo = HERE / "leapformer_fairseq" / "runtime" / "demo"
    samples, _ = soundfile.read(demo / "example.flac", dtype="float32")
    system = exported.ExportedSystem.load(demo / "model", policy.PolicyOptions("wait-k", k=3))

    def run() -> None:
        live = session.Session(system, stream.DecodingOptions())
        for start in range(0, len(samples), 640):
            list(live.push(samples[start : start + 640]))
        list(live.finish())

    yield "a live session", {"recording": run}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("other", type=Path, metavar="OTHER", help="a checkout to compare with")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the ratios as JSON")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose name has this in it")
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="at least for each side of a row")
    parser.add_argument(
        "--again", type=float, default=0.0, metavar="RATIO",
        help="measure rows below this once more, for ten times as long; the second ratio counts",
    )  # fmt: skip
    args = parser.parse_args()
    torch.set_num_threads(1)
    for root, name in ((args.other, "leapformer_before"), (HERE, "leapformer_after")):
        loaded(root, name)
    ratios, first = dict[str, float](), dict[str, float]()
    for cases in (mechanisms, decoders, sessions):
        earlier = dict(cases("leapformer_before"))
        for title, after in cases("leapformer_after"):
            for kind, run in after.items():
                row = f"{title}, {kind}"
                if args.only not in row or title not in earlier:
                    continue
                ratios[row] = compared(earlier[title][kind], run, args.seconds)
                note = ""
                if ratios[row] < args.again:
                    first[row] = ratios[row]
                    ratios[row] = compared(earlier[title][kind], run, 10 * args.seconds)
                    note = f" (at first {first[row]:.3f})"
                print(f"{ratios[row]:.3f}  {row}{note}", flush=True)
    if ratios:
        worst = min(ratios, key=lambda row: ratios[row])
        median = statistics.median(ratios.values())
        print(f"{len(ratios)} rows, median {median:.3f}, least {ratios[worst]:.3f} ({worst})")
    if args.out:
        content = {"seconds": args.seconds, "ratios": ratios, "at first, of rows measured again": first}
        args.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def compared(before: Callable[[], None], after: Callable[[], None], seconds: float) -> float:
    """The median time of `before` over that of `after`, which run in turn, each the first every other time."""
    times: list[list[float]] = [[], []]
    runs = [(before, times[0]), (after, times[1])]
    before()
    after()
    while min(map(sum, times)) < seconds or len(times[0]) < 6:
        for run, taken in runs:
            start = time.perf_counter()
            run()
            taken.append(time.perf_counter() - start)
        runs.reverse()
    return statistics.median(times[0]) / statistics.median(times[1])


if __name__ == "__main__":
    main()

"""Write the fixtures with today's code: `python -m tests.frozen.make`, by hand, from the root of the repository.

They say what checkpoints of users give, so they are written once. Existing ones are kept; to write one again, because
it was wrong or a model was added, give its name and --force. A checkpoint is taken only if

- its outputs are far from every tie: the chosen tokens, also those of a beam, lead by a margin;
- 32 bits suffice: in double precision it gives the same;
- every block matters: with another mechanism there the outputs are others.

Otherwise the next seed is tried.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import sentencepiece
import torch
import yaml
from fairseq import options, search, tasks
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf
from torch import Tensor, nn

from leapformer_fairseq.simul.engine import Engine
from leapformer_fairseq.support.errors import LeapformerError
from tests.models.tiny import target_prefix, text_batch, tts_batch

from . import observe
from .cases import BLOCKS, CASES, Case

SEEDS = 80
MARGIN = {"greedy": 1e-3, "beam": 2e-4, "stop": 1e-2}
PRECISION = observe.ATOL / 3
PAD, EOS = 1, 2
MELS = 6
SYMBOLS = 30
SENTENCES = ("hallo welt das ist ein test", "der hund sah im park", "eins zwei drei vier sechs", "ein haus am see")
_WIDTHS = "--encoder-embed-dim 8 --encoder-ffn-embed-dim 12 --encoder-attention-heads 2 "
_DECODER = "--decoder-embed-dim 8 --decoder-ffn-embed-dim 12 --decoder-attention-heads 2 "
_SPEECH = _WIDTHS + "--decoder-attention-heads 2 --encoder-layers 2 --decoder-layers 2 --conv-out-channels 2"
SETTINGS = {  # task, architecture and sizes; what a case says comes later and wins
    "lm": ("language_modeling", f"leapformer_lm_tiny {_DECODER} --decoder-layers 2 --tokens-per-sample 32"),
    "mlm": ("masked_lm", f"leapformer_mlm_tiny {_WIDTHS} --encoder-layers 2 --tokens-per-sample 64"),
    "nmt": ("translation", f"leapformer_nmt_tiny {_WIDTHS} {_DECODER} --source-lang src --target-lang tgt"),
    "s2t": ("speech_to_text", f"leapformer_s2t_tiny {_SPEECH}"),
    "simulst": ("speech_to_text", f"leapformer_simulst_tiny {_SPEECH}"),
    "tts": (
        "text_to_speech",
        f"leapformer_tts_tiny {_WIDTHS} {_DECODER} --prenet-dim 8 --postnet-conv-dim 8 --output-frame-dim {MELS} "
        "--n-frames-per-step 2 --prenet-dropout 0 --max-source-positions 64 --max-target-positions 64",
    ),
}


class Unsuitable(Exception):
    """A seed whose outputs another machine might not reproduce, or that would not notice a mistake."""


# ------------------------------------------------------------------------------------------------- data and inputs
def write_data(data: Path) -> None:
    """Dictionaries, configuration and inputs of all kinds of models."""
    torch.manual_seed(1)
    for folder in set(observe.FOLDERS.values()):
        (data / folder).mkdir(parents=True)
    _write_text(data / "text")
    _write_speech(data / "speech")
    _write_phonemes(data / "phonemes")


def _words() -> Dictionary:
    words = Dictionary()
    for i in range(SYMBOLS):
        words.add_symbol(f"w{i}")
    return words


def _write_text(folder: Path) -> None:
    for name in ("dict.txt", "dict.src.txt", "dict.tgt.txt"):
        _words().save(str(folder / name))
    source, steps = text_batch(), target_prefix(3, 9, symbols=SYMBOLS)
    batch = {**source, "prev_output_tokens": _padded(target_prefix(3, 8, symbols=SYMBOLS), (8, 5, 7))}
    torch.save({"batch": batch, "source": source, "steps": steps}, folder / "nmt.pt")
    text = {"src_tokens": _padded(target_prefix(3, 15, symbols=SYMBOLS), (15, 11, 6))}
    prompts = {"src_tokens": _padded(target_prefix(3, 7, symbols=SYMBOLS), (7, 5, 6))}
    prompts["src_lengths"] = torch.tensor([7, 5, 6])
    torch.save({"batch": text, "source": prompts, "steps": steps}, folder / "lm.pt")
    sentences = torch.cat([torch.zeros(3, 1).long(), target_prefix(3, 16, symbols=SYMBOLS)[:, 1:]], 1)
    for row, length in zip(sentences, (16, 11, 4), strict=True):
        row[length - 1] = EOS
    sentences = _padded(sentences, (16, 11, 4))
    masked = torch.zeros_like(sentences).bool()
    masked[0, 3] = masked[0, 8] = masked[1, 2] = True
    torch.save({"batch": {"src_tokens": sentences}, "masked": masked}, folder / "mlm.pt")


def _padded(tokens: Tensor, lengths: tuple[int, ...]) -> Tensor:
    for row, length in zip(tokens, lengths, strict=True):
        row[length:] = PAD
    return tokens


def _write_speech(folder: Path) -> None:
    _write_subwords(folder / "spm.model")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
    pieces = [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]
    (folder / "dict.txt").write_text("".join(f"{piece} 1\n" for piece in pieces), encoding="utf-8")
    np.savez(folder / "gcmvn.npz", mean=np.full(80, 8.0, np.float32), std=np.full(80, 3.0, np.float32))
    config = {
        "vocab_filename": "dict.txt",
        "bpe_tokenizer": {"bpe": "sentencepiece", "sentencepiece_model": "spm.model"},
        "global_cmvn": {"stats_npz_path": "gcmvn.npz"},
        "transforms": {"*": ["global_cmvn"], "_train": ["global_cmvn", "specaugment"]},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    lengths = (61, 50, 33)
    frames = _padded_frames(torch.randn(3, max(lengths), 80).half().float(), lengths)
    source = {"src_tokens": frames, "src_lengths": torch.tensor(lengths)}
    tokens = target_prefix(3, 9, symbols=len(pieces))
    batch = {**source, "prev_output_tokens": _padded(tokens.clone(), (9, 6, 8))}
    audio = [_recording(1.75), _recording(0.9)]
    torch.save({"batch": batch, "source": source, "steps": tokens, "audio": audio}, folder / "s2t.pt")


def _write_subwords(model: Path) -> None:
    """A sentencepiece model; it remembers the names of its files, so they are those in an empty folder."""
    with tempfile.TemporaryDirectory() as work, contextlib.chdir(work):
        Path("text").write_text("\n".join(SENTENCES * 30), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input="text", model_prefix="spm", vocab_size=48, model_type="bpe", normalization_rule_name="identity",
            minloglevel=2,
        )  # fmt: skip
        shutil.copy("spm.model", model)


def _padded_frames(frames: Tensor, lengths: tuple[int, ...]) -> Tensor:
    for row, length in zip(frames, lengths, strict=True):
        row[length:] = 0
    return frames


def _recording(seconds: float) -> Tensor:
    """Noise with a changing envelope, 16 bits at 16 kHz."""
    time = torch.arange(round(seconds * 16_000)) / 16_000
    return (2**15 * 0.1 * torch.randn(len(time)).clamp(-3, 3) * (1 + torch.sin(2 * math.pi * 3 * time))).short()


def _write_phonemes(folder: Path) -> None:
    _words().save(str(folder / "vocab.txt"))
    config = {"vocab_filename": "vocab.txt", "features": {"sample_rate": 8000, "n_mels": MELS}, "transforms": {}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    batch = tts_batch(frame=2 * MELS)
    batch["prev_output_tokens"] = batch["prev_output_tokens"].float()
    torch.save({"batch": batch}, folder / "tts.pt")


# ---------------------------------------------------------------------------------------------------------- models
def save_checkpoint(case: Case, seed: int, path: Path, data: Path) -> None:
    """What fairseq's trainer writes, for a model that was not trained but has weights far from their first values."""
    task_name, setting = SETTINGS[case.kind]
    parser = options.get_training_parser(default_task=task_name)
    folder = observe.folder_of(case.kind, data)
    args = options.parse_args_and_arch(parser, [str(folder), "--arch", *setting.split(), *case.flags.split()])
    torch.manual_seed(seed)
    config = convert_namespace_to_omegaconf(args)
    model = tasks.setup_task(config.task).build_model(config.model)
    if case.kind == "mlm":
        model.register_classification_head(observe.HEAD, num_classes=3)
    with torch.no_grad():
        _shake(model, case.kind)
    content = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    for part in (content["task"], content["model"]):
        _forget_folder(part, str(folder))
    history = [{"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 1}]
    extra = {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}}
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    state = {"args": None, "cfg": content, "model": weights, "optimizer_history": history}
    # The older format has no padding around each of many small tensors; torch reads both.
    complete = {**state, "extra_state": extra, "last_optimizer_state": None}
    torch.save(complete, path, _use_new_zipfile_serialization=False)


def _shake(model: nn.Module, kind: str) -> None:
    """Weights as of a trained model: attention with preferences, biases and mechanisms that matter, far from ties."""
    for name, value in model.named_parameters():
        if kind == "mlm" and value.dim() > 1 and ".mechanism." not in name:
            value.normal_(0, value.shape[-1] ** -0.5)  # RoBERTa's are close to 0
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            value.mul_(1.5)
        if name.endswith(("output_projection.weight", "eos_proj.weight", "encoder_attn.out_proj.weight")):
            value.mul_(2)
        if name.endswith("output_projection.weight"):
            value[EOS] *= 1.5  # some sentences end
        if value.dim() < 2 or ".mechanism." in name:
            value.add_(0.2 * torch.randn_like(value))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 2)
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            module.weight[module.padding_idx] = 0
    _teach_lengths(dict(model.named_buffers()))


def _teach_lengths(buffers: dict[str, Tensor]) -> None:
    """What predictors of the target's length learn from data."""
    learned = {"ratio.source_length": 1000, "ratio.target_length": 870, "conv.updates": 3}
    for name, value in buffers.items():
        for end, number in learned.items():
            if name.endswith(end):
                value.fill_(number)
        if "length_predictor" in name and name.endswith("lookup.frames"):
            value.copy_(torch.randint(10, 60, value.shape))
        if "length_predictor" in name and name.endswith("lookup.tokens"):
            value.copy_(torch.randint(5, 15, value.shape))


def _forget_folder(part: Any, folder: str) -> None:
    """The data folder of a checkpoint is given when it is loaded; that of this machine says nothing."""
    values = part if isinstance(part, dict) else vars(part)
    for key, value in values.items():
        if isinstance(value, str) and folder in value:
            values[key] = "data"


# ---------------------------------------------------------------------------------------------------------- checks
@contextlib.contextmanager
def margins() -> Iterator[dict[str, float]]:
    """The smallest leads of chosen tokens over others, of fairseq's search and of agents, while this holds."""
    found = dict.fromkeys(MARGIN, math.inf)
    search_step, engine_step = search.BeamSearch.step, Engine.step

    def note(name: str, values: Tensor, count: int) -> None:
        best = values.double().flatten().topk(min(count, values.numel())).values
        gaps = (best[:-1] - best[1:])[best[1:].isfinite()]
        found[name] = min(found[name], *gaps.tolist(), math.inf)

    def searched(self: Any, step: int, lprobs: Tensor, scores: Tensor, *args: Any, **kwargs: Any) -> Any:
        beam = lprobs.shape[1]
        total = lprobs[:, :1] if step == 0 else lprobs + scores[:, :, step - 1].unsqueeze(-1)
        for sentence in total:
            if sentence.gt(-1e4).sum() > 1:  # only one may be possible: a prompt, or the end
                note("greedy" if beam == 1 else "beam", sentence, 2 * beam + 1 if beam > 1 else 2)
        return search_step(self, step, lprobs, scores, *args, **kwargs)

    def stepped(self: Any, *args: Any) -> Tensor:
        logits = engine_step(self, *args)
        words = logits[EOS + 1 :]
        note("greedy", words, 2)
        note("greedy", torch.cat([logits[EOS : EOS + 1], words]), 2)
        if self.attention is not None:
            note("greedy", self.attention, 2)
        return logits

    with patch.object(search.BeamSearch, "step", searched), patch.object(Engine, "step", stepped):
        yield found


def check(case: Case, folder: Path, data: Path) -> dict[str, Any]:
    """The outputs of a checkpoint; raises Unsuitable for one that would be a bad fixture."""
    with margins() as found:
        outputs = observe.outputs(folder, case.kind, [*case.streams], data)
    if "generated" in outputs:
        found["stop"] = min(float((one["eos_prob"] - 0.5).abs().min()) for one in outputs["generated"])
    for name, value in found.items():
        if value < MARGIN[name]:
            raise Unsuitable(f"{name} margin {value:.1e}")
    _check_variety(outputs)
    _check_precision(case, folder, data, outputs)
    _check_blocks(case, folder, data, outputs)
    return outputs


def _check_variety(outputs: dict[str, Any]) -> None:
    """Sequences are of several different tokens, and not cut off at once."""
    written = [one["tokens"] for name in outputs if name.startswith("stream") for one in outputs[name]]
    written += [sentence[0]["tokens"] for sentence in outputs.get("hypotheses, beam 1", [])]
    alike = len({tuple(tokens) for tokens in written}) <= len(written) // 2
    if written and (alike or max(len(set(tokens)) for tokens in written) < 5):
        raise Unsuitable("dull output")
    if any(len({len(x["feature"]) for x in outputs[name]}) < 2 for name in outputs if name == "generated"):
        raise Unsuitable("all equally long")


def _check_precision(case: Case, folder: Path, data: Path, outputs: dict[str, Any]) -> None:
    model, task = observe.load(folder / "checkpoint.pt", case.kind, data)
    exact = observe.observed(model.double(), task, case.kind, _double(observe.inputs_of(case.kind, data)))
    worst = max(_distance(outputs[key], exact[key]) for key in exact)
    if worst > PRECISION:
        raise Unsuitable(f"{worst:.1e} from double precision")


def _double(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _double(one) for key, one in value.items()}
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _distance(one: Any, other: Any) -> float:
    """The largest difference between numbers in outputs of the same form; infinite if tokens differ."""
    if isinstance(one, dict):
        return max((_distance(one[key], other[key]) for key in one), default=0.0)
    if isinstance(one, list):
        if len(one) != len(other) or (all(isinstance(x, int) for x in one) and one != other):
            return math.inf
        return max(map(_distance, one, other), default=0.0)
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other)
    if not isinstance(one, Tensor):
        return 0.0  # bytes are others in double precision
    if one.shape != other.shape or not (one.is_floating_point() or torch.equal(one, other)):
        return math.inf
    finite = one.isfinite()
    return float((one - other)[finite].abs().max()) if finite.any() else 0.0


def _check_blocks(case: Case, folder: Path, data: Path, outputs: dict[str, Any]) -> None:
    """Every block of the model matters to what is compared."""
    words = case.flags.split()
    for block in BLOCKS:
        if f"--{block}-attention" not in words:
            continue
        plan = words[words.index(f"--{block}-attention") + 1]
        other = {f"{block.replace('-', '_')}_attention": "elu" if "softmax" in plan else "softmax"}
        try:
            model, _ = observe.load(folder / "checkpoint.pt", case.kind, data, **other)
        except LeapformerError:
            continue  # the rest of the plan needs this block
        with torch.no_grad():
            found = observe.forward(model, case.kind, observe.inputs_of(case.kind, data))
        if _distance(_first(outputs["forward"]), _first(found)) < 1e-2:
            raise Unsuitable(f"{block} hardly matters")


def _first(forward: dict[str, Any]) -> Tensor:
    return next(iter(forward.values()))


# ----------------------------------------------------------------------------------------------------- the command
def write_fixture(name: str, data: Path) -> str:
    """Write one fixture; gives what was found of it, in a few words."""
    case, reasons = CASES[name], []
    for seed in range(1, SEEDS + 1):
        with tempfile.TemporaryDirectory() as work:
            folder = Path(work, name)
            folder.mkdir()
            save_checkpoint(case, seed, folder / "checkpoint.pt", data)
            try:
                outputs = check(case, folder, data)
            except Unsuitable as reason:
                reasons.append(str(reason))
                continue
            content = {"kind": case.kind, "streams": [*case.streams], "outputs": _contiguous(outputs)}
            torch.save(content, folder / "expected.pt", _use_new_zipfile_serialization=False)
            shutil.rmtree(data / name, ignore_errors=True)
            shutil.copytree(folder, data / name)
            return f"seed {seed}; {len(reasons)} before it did not serve"
    raise SystemExit(f"{name}: no seed serves; {json.dumps(reasons)}")


def _contiguous(value: Any) -> Any:
    """Copies without what else is in the memory that views look at."""
    if isinstance(value, dict):
        return {key: _contiguous(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_contiguous(one) for one in value]
    return value.clone().contiguous() if isinstance(value, Tensor) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="fixtures to write (default: those that are missing)")
    parser.add_argument("--force", action="store_true", help="write those that are there again")
    args = parser.parse_args()
    unknown = sorted({*args.names} - {*CASES})
    if unknown:
        parser.error(f"no fixture is named {unknown[0]!r}; there are: {', '.join(CASES)}")
    names = args.names or [name for name in CASES if args.force or not (observe.DATA / name).exists()]
    there = [name for name in names if (observe.DATA / name).exists()]
    if there and not args.force:
        parser.error(f"{', '.join(there)}: already there, and meant to stay as they are; --force writes them again")
    torch.set_num_threads(1)
    if not observe.DATA.exists():
        write_data(observe.DATA)
    for name in names:
        print(f"{name}: {write_fixture(name, observe.DATA)}", flush=True)


if __name__ == "__main__":
    main()

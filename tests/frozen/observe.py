"""What is compared: a checkpoint as fairseq loads it, everything it puts out on fixed inputs, and how outputs differ.

Only what users have is used here: fairseq's loader and generators, flags, models as fairseq calls them,
`leapformer_fairseq.simul` and `state_bytes`. So the insides may change, and these files need not.

A fixture is a folder: checkpoint.pt as fairseq-train writes it, and expected.pt, {"kind", "streams", "outputs"}. The
folders `text`, `speech` and `phonemes` beside them hold what the tasks need, and the inputs of each kind of model.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import leapformer_fairseq

register = getattr(leapformer_fairseq, "register", None)
if register is not None:
    register()

from fairseq import checkpoint_utils  # noqa: E402
from fairseq.dataclass.configs import GenerationConfig  # noqa: E402
from fairseq.speech_generator import AutoRegressiveSpeechGenerator  # noqa: E402

from leapformer_fairseq.modules import state_bytes  # noqa: E402
from leapformer_fairseq.runtime.simul.policy import PolicyOptions  # noqa: E402
from leapformer_fairseq.runtime.simul.stream import DecodingOptions, TranslationStream  # noqa: E402
from leapformer_fairseq.simul.loading import load_system  # noqa: E402

DATA = Path(__file__).parent / "data"
FOLDERS = {"lm": "text", "mlm": "text", "nmt": "text", "s2t": "speech", "simulst": "speech", "tts": "phonemes"}
HEAD = "topics"
ATOL = 1e-5
PIECE = 700  # samples that an agent hears at a time, no whole number of frames
STEPS = 7  # of a generation whose state is measured
FRAME_STEPS = 8  # that speech synthesis may take
MAX_LEN = 14  # tokens that are written at most


def folder_of(kind: str, data: Path = DATA) -> Path:
    """Where the dictionaries, configuration and inputs of a kind of model are."""
    return data / FOLDERS[kind]


def inputs_of(kind: str, data: Path = DATA) -> dict[str, Any]:
    """The inputs of a kind of model."""
    return torch.load(folder_of(kind, data) / f"{kind.replace('simulst', 's2t')}.pt", weights_only=True)


def load(
    checkpoint: Path, kind: str, data: Path = DATA, state: dict[str, Any] | None = None, **overrides: Any
) -> tuple[Any, Any]:
    """(model, task) as fairseq loads them; `overrides` are options other than those of training."""
    given = {"data": str(folder_of(kind, data)), **overrides}
    if kind == "mlm":
        given["load_checkpoint_heads"] = True
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], given, state=state)
    return models[0].eval(), task


def outputs(folder: Path, kind: str, streams: list[dict[str, Any]], data: Path = DATA) -> dict[str, Any]:
    """All that a fixture's checkpoint puts out."""
    model, task = load(folder / "checkpoint.pt", kind, data)
    found = observed(model, task, kind, inputs_of(kind, data))
    for i, stream in enumerate(streams):
        found[f"stream {i}"] = streamed(folder / "checkpoint.pt", kind, stream, data)
    return found


@torch.no_grad()
def observed(model: Any, task: Any, kind: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """What a model puts out by itself."""
    return {"forward": forward(model, kind, inputs), **_GENERATE.get(kind, _translated)(model, task, inputs)}


@torch.no_grad()
def forward(model: Any, kind: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """Teacher-forced outputs of a padded batch, with attention weights if the model offers them."""
    if kind == "mlm":
        return _masked(model, inputs)
    if kind == "tts":
        frames, ended, extra = model(**inputs["batch"])
        return {"frames": frames, "ended": ended, "raw": extra["feature_out"], "attention": extra["attn"]}
    logits, extra = model(**inputs["batch"])
    found = {"logits": logits, "attention": (extra.get("attn") or [None])[0]}
    if getattr(getattr(model, "encoder", None), "ctc_proj", None) is not None:
        found["recognised"], _ = model.get_ctc_output((logits, extra), {})
    if kind == "lm":
        found["log probabilities"] = model.get_normalized_probs((logits[:1], extra), True, None)
    return found


def _masked(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    tokens, masked = inputs["batch"]["src_tokens"], inputs["masked"]
    return {
        "logits": model(tokens)[0],
        "of masked tokens": model(tokens, masked_tokens=masked)[0],
        "features": model(tokens, features_only=True)[0],
        "classes": model(tokens, classification_head_name=HEAD)[0],
    }


def _translated(model: Any, task: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Of an encoder and a decoder: hypotheses, and single steps over given tokens."""
    return {**_hypotheses(model, task, inputs), **{f"steps, beam {n}": _steps(model, inputs, n) for n in (1, 3)}}


def _continued(model: Any, task: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Of a language model: continued prompts, single steps, and a text read in parts on top of one state."""
    tokens, state = inputs["steps"], {}
    first, second = (model.decoder.read(part, state) for part in tokens.split([4, tokens.shape[1] - 4], 1))
    read = {"features": torch.cat([first, second], 1), "bytes": state_bytes(state)}
    return {**_translated(model, task, inputs), "read": read}


def _hypotheses(model: Any, task: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Those that fairseq's generator gives of the batch, all of a beam."""
    found = {}
    for beam in (1, 3):
        asked = Namespace(**vars(GenerationConfig(beam=beam, max_len_b=MAX_LEN, nbest=beam)))
        generator = task.build_generator([model], asked)
        sample = {"net_input": inputs["source"]}
        sentences = task.inference_step(generator, [model], sample)
        found[f"hypotheses, beam {beam}"] = [
            [{key: one[key].tolist() for key in ("tokens", "score", "positional_scores")} for one in sentence]
            for sentence in sentences
        ]
    return found


def _steps(model: Any, inputs: dict[str, Any], beam: int) -> dict[str, Any]:
    """A decoder fed one given token after the other, as a generator with this beam does, and its state at the end."""
    tokens, state = inputs["steps"].repeat_interleave(beam, 0), {}
    if hasattr(model, "set_beam_size"):
        model.set_beam_size(beam)
    source = {} if not hasattr(model, "encoder") else {"encoder_out": _read_source(model.encoder, inputs, beam)}
    rows = [model.decoder(tokens[:, : t + 1], incremental_state=state, **source)[0] for t in range(STEPS)]
    logits = torch.cat(rows, 1)[::beam]
    return {"logits": logits if beam == 1 else logits[:, -1], "bytes": state_bytes(state)}


def _read_source(encoder: Any, inputs: dict[str, Any], beam: int) -> Any:
    """What a decoder is given of the source, for each hypothesis."""
    found = encoder.forward_torchscript(inputs["source"])
    order = torch.arange(len(inputs["steps"])).repeat_interleave(beam)
    return encoder.reorder_encoder_out(found, order)


def _spoken(model: Any, task: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Of speech synthesis: what fairseq's generator says, the predicted length, and the state after some steps."""
    batch, state = inputs["batch"], {}
    source = {"src_tokens": batch["src_tokens"], "src_lengths": batch["src_lengths"]}
    generator = AutoRegressiveSpeechGenerator(model, None, task.data_cfg, max_iter=FRAME_STEPS)
    said = generator.generate(model, {"net_input": source, "speaker": None})
    encoder_out = model.forward_encoder(**source)
    for t in range(STEPS):
        given = batch["prev_output_tokens"][:, t : t + 1]
        lengths = torch.full_like(batch["src_lengths"], t + 1)
        model.decoder(given, encoder_out=encoder_out, incremental_state=state, target_lengths=lengths)
    return {
        "generated": [{key: one[key] for key in ("feature", "eos_prob", "attn")} for one in said],
        "predicted length": model.predicted_length(encoder_out),
        "bytes": state_bytes(state),
    }


_GENERATE: dict[str, Callable[[Any, Any, dict[str, Any]], dict[str, Any]]] = {
    "mlm": lambda model, task, inputs: {},
    "lm": _continued,
    "tts": _spoken,
}


def streamed(checkpoint: Path, kind: str, stream: dict[str, Any], data: Path = DATA) -> list[dict[str, Any]]:
    """What an agent writes of each recording, fed in small pieces: tokens, the samples heard before each, and text.

    `stream` holds fields of PolicyOptions, and arguments of `load_system`.
    """
    policy = {key: value for key, value in stream.items() if key not in ("pre_decision_ratio", "engine")}
    given = {key: value for key, value in stream.items() if key not in policy}
    system = load_system(checkpoint, folder_of(kind, data), policy=PolicyOptions(**policy), **given)
    options = DecodingOptions(max_len_b=MAX_LEN)
    return [_written(TranslationStream(system, options), audio) for audio in inputs_of(kind, data)["audio"]]


def _written(stream: TranslationStream, audio: Tensor) -> dict[str, Any]:
    samples, delays, text = (audio.float() / 2**15).numpy(), [], []
    for start in range(0, len(samples), PIECE):
        final = start + PIECE >= len(samples)
        stream.push(samples[start : start + PIECE])
        stream.advance(source_finished=final)
        delays += [stream.n_samples] * (stream.n_tokens - len(delays))
        text.append(stream.flush(final))
    return {"tokens": list(stream.engine.tokens), "delays": delays, "text": [part for part in text if part]}


def differences(expected: Any, found: Any, name: str = "") -> Iterator[str]:
    """Where outputs differ, in words: numbers by more than ATOL, everything else at all."""
    if isinstance(expected, dict | list) and type(expected) is type(found):
        yield from _parts_that_differ(expected, found, name)
    elif isinstance(expected, Tensor) and isinstance(found, Tensor):
        if expected.shape != found.shape or expected.dtype != found.dtype:
            yield f"{name}: {tuple(expected.shape)} {expected.dtype} became {tuple(found.shape)} {found.dtype}"
        elif not expected.is_floating_point() and not torch.equal(expected, found):
            yield f"{name}: {expected.tolist()} became {found.tolist()}"
        elif expected.is_floating_point() and not torch.allclose(expected, found, rtol=0, atol=ATOL):
            yield f"{name}: differs by {(expected - found).abs().max():.1e}"
    elif isinstance(expected, float) and isinstance(found, float):
        if abs(expected - found) > ATOL:
            yield f"{name}: {expected} became {found}"
    elif type(expected) is not type(found) or expected != found:
        yield f"{name}: {_said(expected)} became {_said(found)}"


def _said(value: Any) -> str:
    return f"{tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)


def _parts_that_differ(expected: Any, found: Any, name: str) -> Iterator[str]:
    keys = expected.keys() if isinstance(expected, dict) else range(len(expected))
    if keys != (found.keys() if isinstance(found, dict) else range(len(found))):
        yield f"{name}: has the parts {[*keys]}, not what was found ({len(found)})"
        return
    for key in keys:
        yield from differences(expected[key], found[key], f"{name}, {key}" if name else str(key))

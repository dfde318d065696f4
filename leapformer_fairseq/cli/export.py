"""`leapformer export`: a trained model as ONNX graphs, to run without PyTorch and fairseq."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runtime.folder import CTRANSLATE2, FILES, MODEL, ONNX, TASKS_OF, Folder
from ..support.errors import LeapformerError
from ..support.files import replacing_folder
from ..support.options import flag
from ..support.signature import signature

if TYPE_CHECKING:
    from ..export.check import Compared
    from ..export.subwords import Subwords

    Exported = tuple[Folder, Callable[[Folder], Compared]]  # with the comparison to call once the folder is in place

CONFIG = "config.yaml"
SIMULTANEOUS, OFFLINE = ("leapformer_simulst",), ("leapformer_s2t", "leapformer_s2t_transformer")
LANGUAGE_MODEL, TEXT, SYNTHESIS = ("leapformer_lm",), ("leapformer_nmt",), ("leapformer_tts",)
SUBWORDS = "sentencepiece_model", "bpe_codes", "gpt2_bpe"
# Options that only some models have: the models, and the option's default.
ONLY_FOR: dict[str, tuple[tuple[str, ...], str | None]] = {
    **dict.fromkeys(("config_yaml", "pre_decision_ratio"), ((*SIMULTANEOUS, *OFFLINE), None)),
    **dict.fromkeys((*SUBWORDS, "moses"), ((*TEXT, *LANGUAGE_MODEL), None)),
    "engine": ((*TEXT, *LANGUAGE_MODEL), ONNX),
    "alignments": ((*TEXT, *SIMULTANEOUS, *OFFLINE), None),
}


OPTIONS = """
--path CHECKPOINT!      a trained leapformer_nmt, _lm, _simulst, _s2t or _tts model; or a transformer of fairseq's own
--out DIR:path!         the graphs, vocabularies and model.json
--data DIR              its dictionaries; of speech, the folder of its config yaml (default: as in the training)
--config-yaml NAME      of speech, in --data (default: config.yaml; of whole recordings as in the training)
--pre-decision-ratio N:int  of speech while it arrives: encoder states of a step (default: the trained one)
--sentencepiece-model FILE:path  of text: copied into DIR, to translate plain text
--alignments [N=-1]:int  of translation: steps also tell what they attend to, in decoder layer N, from 1, or from the
                        last one backwards, from -1 (the one of --print-alignment; -1 if N is left out)
--engine NAME = onnx    what runs DIR: onnx, all models; ctranslate2, text with softmax in all blocks
--bpe-codes FILE:path   of text: codes of subword-nmt or fastBPE, in place of a sentencepiece model
--gpt2-bpe ENCODER VOCAB:path  or encoder.json and vocab.bpe of GPT-2, as for fairseq's --bpe gpt2
--moses SOURCE-TARGET   of text: languages whose plain text is split into words as by Moses before that, such as en-de,
                        or en of a language model
--quantize              round the weights of projections to 8 bits: a third of the size, and slightly other outputs, so
                        measure the loss in quality
--check N:int = 0       compare with the checkpoint on N random sources: all hypotheses of beam 5; what is written while
                        speech arrives; what is spoken (default: 0)
"""


def run(args: argparse.Namespace) -> int:
    """Export, compare with the checkpoint if --check is given, and print the result.

    The status is 1 if outputs differ, unless --quantize explains that. Raises LeapformerError for a model that cannot
    be exported.
    """
    if args.check < 0:
        raise LeapformerError(f"--check {args.check}: give a number of sources, or 0 for no comparison")
    if args.engine not in TASKS_OF:
        raise LeapformerError(f"--engine {args.engine}: give one of {', '.join(TASKS_OF)}")
    if args.engine == CTRANSLATE2 and args.alignments is not None:
        raise LeapformerError(f"--alignments: --engine {CTRANSLATE2} has none; export with --engine {ONNX}")
    arch = _architecture(args.path)
    _check_options(args, arch)
    exporters = {SIMULTANEOUS: _speech, OFFLINE: _recordings, TEXT: _text, LANGUAGE_MODEL: _text, SYNTHESIS: _synthesis}
    export = next((export for kinds, export in exporters.items() if arch.startswith(kinds)), None)
    if export is None:
        names = " or ".join(f"{kind}*" for kinds in exporters for kind in kinds)
        raise LeapformerError(f"--path {args.path} holds architecture {arch!r}; export needs {names}")
    with replacing_folder(args.out, MODEL, FILES, "export") as partial:
        folder, compare = export(args, partial)
        if args.quantize and args.engine == ONNX:
            from ..export.write import quantize

            quantize(folder)
    size = sum(path.stat().st_size for path in args.out.iterdir() if path.is_file())
    print(f"{args.out}: {size / 2**20:.1f} MiB; `python -m leapformer_fairseq.runtime {args.out}`")
    if not args.check:
        return 0
    comparison = compare(Folder.read(args.out))
    print(f"{comparison.equal} of {comparison.sources} sources have equal output; largest error {comparison.error:.1e}")
    return 0 if args.quantize or comparison.equal == comparison.sources else 1


def _architecture(path: str) -> str:
    """The --arch of a checkpoint, ours for fairseq's own; from the file, since building the model needs its data."""
    from ..models.averaging import load_checkpoint
    from ..models.stock import adopted, architecture

    if not Path(path).is_file():
        raise LeapformerError(f"--path {path}: no such file; give the checkpoint of a trained model")
    return adopted(architecture(load_checkpoint(Path(path))))


def _check_options(args: argparse.Namespace, arch: str) -> None:
    """Raise LeapformerError for an option that this architecture would ignore."""
    for name, (kinds, default) in ONLY_FOR.items():
        value = getattr(args, name)
        if value != default and not arch.startswith(kinds):
            raise LeapformerError(f"{flag(name)} {value} has no meaning for {arch}; leave it out")


def _loaded(args: argparse.Namespace, kinds: tuple[str, ...]) -> tuple[Any, Any]:
    """The model, of one of these kinds, and its task."""
    from ..models.loading import load_model

    given = {name: getattr(args, name) for name in ("data", "config_yaml")}
    return load_model(args.path, kinds, "export", {name: value for name, value in given.items() if value is not None})


def _origin(args: argparse.Namespace) -> dict[str, Any]:
    from ..models.averaging import describe_checkpoint

    return describe_checkpoint(args.path)


def _text(args: argparse.Namespace, out: Path) -> Exported:
    from ..export.check import compared
    from ..export.write import export_language_model, export_to_ctranslate2, export_translation

    model, task = _loaded(args, (*TEXT, *LANGUAGE_MODEL))
    export: Callable[..., Folder] = export_translation if hasattr(model, "encoder") else export_language_model
    if args.engine == CTRANSLATE2:
        export = functools.partial(export_to_ctranslate2, eight_bits=args.quantize)
    elif args.alignments is not None:
        export = functools.partial(export, alignments=args.alignments)
    folder = export(model, task, out, signature(), _origin(args), _subwords(args))
    return folder, lambda exported: compared(model, task, exported, args.check)


def _subwords(args: argparse.Namespace) -> Subwords:
    """How plain text is split. Raises LeapformerError for missing files and options that exclude each other."""
    from ..export.subwords import Subwords

    given = {flag(name): files for name in SUBWORDS if (files := getattr(args, name)) is not None}
    for name, files in given.items():
        for file in files if isinstance(files, list) else [files]:
            if not file.is_file():
                raise LeapformerError(f"{name} {file}: no such file")
    if len(given) > 1:
        raise LeapformerError(f"{' and '.join(given)}: give the one that the training's text was split by")
    subwords = Subwords(args.sentencepiece_model, args.bpe_codes, gpt2=args.gpt2_bpe and tuple(args.gpt2_bpe))
    if args.moses is None:
        return subwords
    source, _, target = args.moses.partition("-")
    if not source:
        raise LeapformerError(f"--moses {args.moses}: give languages, as in en-de")
    return subwords._replace(moses=(source, target or source))


def _synthesis(args: argparse.Namespace, out: Path) -> Exported:
    from ..export.check import compared_synthesis
    from ..export.write import export_synthesis
    from ..runtime.voice import ExportedVoice

    model, task = _loaded(args, SYNTHESIS)
    folder = export_synthesis(model, task, out, signature(), _origin(args))
    return folder, lambda exported: compared_synthesis(model, ExportedVoice(exported), args.check)


def _recordings(args: argparse.Namespace, out: Path) -> Exported:
    from ..export.check import compared_recordings
    from ..export.write import export_recordings

    model, task = _loaded(args, OFFLINE)
    if model.encoder.chunks is not None:
        return _speech(args, out)
    for option, given in (("--pre-decision-ratio", args.pre_decision_ratio), ("--alignments", args.alignments)):
        if given is not None:
            raise LeapformerError(
                f"{option} {given} has no meaning for a model that reads whole recordings; leave it out"
            )
    folder = export_recordings(model, task, out, signature(), _origin(args))
    return folder, lambda exported: compared_recordings(model, task, exported, args.check)


def _speech(args: argparse.Namespace, out: Path) -> Exported:
    from ..export.check import compared_speech
    from ..export.write import export_speech
    from ..runtime.simul.policy import PolicyOptions
    from ..simul.loading import load_system

    if args.data is None:
        raise LeapformerError("--data is missing; give the folder of the config yaml, as in training")
    policy = PolicyOptions("offline")  # any will do: the policy is not part of the graphs
    system = load_system(args.path, args.data, args.config_yaml or CONFIG, policy, args.pre_decision_ratio)
    folder = export_speech(system, out, signature(), _origin(args), alignments=args.alignments)
    return folder, lambda exported: compared_speech(system, exported, args.check)

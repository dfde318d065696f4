"""`leapformer export`: a trained model as ONNX graphs, to run without PyTorch and fairseq."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runtime.folder import CTRANSLATE2, FILES, MODEL, ONNX, TASKS_OF, Folder
from ..support.errors import LeapformerError
from ..support.files import replacing_folder
from ..support.lines import read_lines
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
# Of models of several languages, in place of what the training was given:
LANGUAGES = ("lang_dict", "lang_pairs", "fixed_dictionary", "encoder_langtok", "decoder_langtok")
PAIR = "source_lang", "target_lang"
# Options that only some models have: the models, and the option's default.
ONLY_FOR: dict[str, tuple[tuple[str, ...], str | None]] = {
    **dict.fromkeys(("config_yaml", "pre_decision_ratio"), ((*SIMULTANEOUS, *OFFLINE), None)),
    **dict.fromkeys((*SUBWORDS, "moses"), ((*TEXT, *LANGUAGE_MODEL), None)),
    **dict.fromkeys((*PAIR, *LANGUAGES), (TEXT, None)),
    "engine": ((*TEXT, *LANGUAGE_MODEL), ONNX),
    "alignments": ((*TEXT, *SIMULTANEOUS, *OFFLINE), None),
}


OPTIONS = """
--path CHECKPOINT!      a trained leapformer_nmt, _lm, _simulst, _s2t or _tts model; or a transformer of fairseq's own
--average               of several, FIRST.pt:SECOND.pt: one model of the means of their parameters
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
--source-lang, -s LANG  of a model of several languages: the one of a text of which nothing is said; of two: that of
                        the dictionaries, if the checkpoint does not say it
--target-lang, -t LANG  and the one to translate it into
--lang-dict FILE        its languages, a line each (this and the next: default: as in the training)
--lang-pairs PAIRS      those of the training, such as en-de,de-en, or a file that holds them
--fixed-dictionary FILE  in place of those in --data
--encoder-langtok (src|tgt)  the language whose token is put before a source
--decoder-langtok       whether that of the target is put before it
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
    with _one_checkpoint(args.path.split(os.pathsep), args.average) as path:
        return _export(argparse.Namespace(**{**vars(args), "path": path}))


@contextmanager
def _one_checkpoint(paths: list[str], average: bool) -> Iterator[str]:
    """The only one of the paths, or a checkpoint with the mean of all. Raises LeapformerError for an ensemble."""
    given = os.pathsep.join(paths)
    if len(paths) == 1 or Path(given).is_file():
        if average:
            raise LeapformerError(f"--average: --path {given} is one file; give several, FIRST.pt:SECOND.pt")
        yield given
        return
    for path in paths:
        _architecture(path)  # whether it can be read
    if not average:
        raise LeapformerError(
            f"--path {given}: a folder holds one model, not an ensemble; give --average for the mean of their "
            "parameters, which suits checkpoints of one training"
        )
    from ..models.averaging import average_checkpoints, save_checkpoint

    with tempfile.TemporaryDirectory() as folder:
        mean = Path(folder) / Path(paths[-1]).name
        save_checkpoint(average_checkpoints([Path(path) for path in paths]), mean)
        yield str(mean)


def _export(args: argparse.Namespace) -> int:
    """As `run`, given one checkpoint."""
    from ..models.stock import needed

    arch = _architecture(args.path)
    exporters = {SIMULTANEOUS: _speech, OFFLINE: _recordings, TEXT: _text, LANGUAGE_MODEL: _text, SYNTHESIS: _synthesis}
    export = next((export for kinds, export in exporters.items() if arch.startswith(kinds)), None)
    if export is None:
        names = needed([kind for kinds in exporters for kind in kinds])
        raise LeapformerError(f"--path {args.path} holds architecture {arch!r}; export needs {names}")
    _check_options(args, arch)
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
        reason = "it is a folder" if Path(path).is_dir() else "no such file"
        raise LeapformerError(f"--path {path}: {reason}; give the checkpoint of a trained model")
    return adopted(architecture(load_checkpoint(Path(path))))


def _check_options(args: argparse.Namespace, arch: str) -> None:
    """Raise LeapformerError for an option that this architecture would ignore."""
    for name, (kinds, default) in ONLY_FOR.items():
        value = getattr(args, name)
        if (None if value is False else value) != default and not arch.startswith(kinds):
            raise LeapformerError(f"{flag(name)} {value} has no meaning for {arch}; leave it out")


def _loaded(args: argparse.Namespace, kinds: tuple[str, ...]) -> tuple[Any, Any]:
    """The model, of one of these kinds, and its task."""
    from ..models.loading import load_model

    model, task = load_model(args.path, kinds, "export", _overrides(args))
    given = next((name for name in LANGUAGES if getattr(args, name)), None)
    if given is not None and not getattr(task, "langs", None):
        raise LeapformerError(f"{flag(given)}: {args.path} is no model of several languages; leave it out")
    return model, task


def _overrides(args: argparse.Namespace) -> dict[str, Any]:
    """Options of the training to be replaced. Raises LeapformerError for one language of a pair."""
    names = ("data", "config_yaml", *LANGUAGES[:3], *(() if _is_told_languages(args.path) else PAIR))
    if PAIR[0] in names and (args.source_lang is None) != (args.target_lang is None):
        given = flag(PAIR[args.source_lang is None])
        raise LeapformerError(f"{given} alone: {args.path} is of one pair of languages; give both or none")
    found = {name: value for name in names if (value := getattr(args, name)) is not None}
    if "lang_dict" in found:
        found["langs"] = None  # which excludes it
    if "lang_pairs" in found and Path(found["lang_pairs"]).is_file():
        found["lang_pairs"] = "".join(read_lines(Path(found["lang_pairs"]), "--lang-pairs"))
    if args.encoder_langtok or args.decoder_langtok:
        found["langtoks"] = {"main": (args.encoder_langtok, "tgt" if args.decoder_langtok else None)}
    return found


def _is_told_languages(path: str) -> bool:
    """Whether the checkpoint is that of a task of several languages."""
    from ..compat.trust import options_of
    from ..models.averaging import load_checkpoint

    state = load_checkpoint(Path(path))
    return "lang_pairs" in options_of((state.get("cfg") or {}).get("task") or state.get("args") or {})


def _origin(args: argparse.Namespace) -> dict[str, Any]:
    from ..models.averaging import describe_checkpoint

    return describe_checkpoint(args.path)


def _text(args: argparse.Namespace, out: Path) -> Exported:
    from ..export.check import compared
    from ..export.write import export_text

    model, task = _loaded(args, (*TEXT, *LANGUAGE_MODEL))
    languages = (args.source_lang, args.target_lang) if getattr(task, "langs", None) else (None, None)
    folder = export_text(
        *(model, task, out, signature(), _origin(args), _subwords(args), languages),
        alignments=args.alignments,
        engine=args.engine,
        eight_bits=args.quantize,
    )
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
    from ..export.subwords import Subwords, check_subwords
    from ..export.write import IN_CONFIG, export_speech
    from ..runtime.simul.policy import PolicyOptions
    from ..simul.loading import load_system

    if args.data is None:
        raise LeapformerError("--data is missing; give the folder of the config yaml, as in training")
    policy = PolicyOptions("offline")  # any will do: the policy is not part of the graphs
    system = load_system(args.path, args.data, args.config_yaml or CONFIG, policy, args.pre_decision_ratio)
    symbols = system.model.decoder.dictionary.symbols
    check_subwords(Subwords(system.detokenizer.model_file), symbols, IN_CONFIG)
    folder = export_speech(system, out, signature(), _origin(args), alignments=args.alignments)
    return folder, lambda exported: compared_speech(system, exported, args.check)

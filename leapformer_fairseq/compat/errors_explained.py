"""What fairseq's own errors mean: one line with the value, the reason and the remedy, made where a command ends.

fairseq itself stays as it is, and from Python its errors are its own; only the command line asks for `explained`.
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentError
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ..support import errors
from ..support.errors import LeapformerError, frames, one_line


def explained(error: BaseException) -> LeapformerError | None:
    """The user's error that caused an exception of fairseq or Python; None where the traceback is more useful."""
    if isinstance(error, LeapformerError):
        return error
    if not isinstance(error, Exception):  # an interrupt is about nothing that it interrupts
        return None
    message = next((found for rule in _RULES if (found := rule(error))), None)
    return LeapformerError(message) if message else errors.explained(error)


def print_in_one_line() -> None:
    """End fairseq's and SimulEval's own commands with one line where the error is for the user.

    Only when such a command is what runs: they have no place but `sys.excepthook` for the way an error is shown, and
    the process is theirs. In every other process, `leapformer`'s own included, nothing is set.
    """
    program = Path(sys.argv[0]) if sys.argv else Path()
    names = {program.stem, program.parent.name}  # bin/fairseq-train, or -m fairseq_cli.train
    if not (program.stem.startswith("fairseq-") or names & {"fairseq_cli", "simuleval"}):
        return
    before = sys.excepthook
    if getattr(before, "__module__", None) == __name__:
        return

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        found = explained(error)
        if found is None:
            before(kind, error, trace)
        else:
            sys.stderr.write(f"leapformer: error: {one_line(found)}\n")

    sys.excepthook = excepthook


def another_task(arch: str, served: Sequence[str], task: str) -> str:
    """The line for an architecture that is for the tasks `served` and was given another."""
    return (
        f"architecture {arch!r} is for --task {' or '.join(served)}, not for {task}; choose an architecture for it "
        "(`leapformer list`), give the checkpoint of one, or change --task"
    )


def _locals(error: BaseException, module: str, function: str | None = None) -> dict[str, Any] | None:
    """The variables of the innermost call of a function of a module that the error passed; of any without a name."""
    for frame in frames(error):
        if frame.f_globals.get("__name__") == module and function in (None, frame.f_code.co_name):
            return frame.f_locals
    return None


def _in_another_process(error: BaseException) -> str | None:
    """One of our errors in a process of fairseq, one per GPU: torch gives its traceback as text."""
    found = re.search(rf"\.{LeapformerError.__name__}: (.+)\s*\Z", str(error))
    return found[1].strip() if found else None


def _no_batch_size(error: BaseException) -> str | None:
    asked = isinstance(error, AssertionError) and str(error).startswith("Must specify batch size")
    return "no batch size is given; give --max-tokens or --batch-size" if asked else None


def _missing_data(error: BaseException) -> str | None:
    """A task that does not find a file of its data, or its languages in the names of files."""
    setting_up = _locals(error, "fairseq.tasks", "setup_task")
    if "Could not infer language pair" in str(error) and setting_up:
        return f"{setting_up['cfg'].data}: no data of two languages; give the folder that `leapformer preprocess` wrote"
    said = re.match(r"(.+\.yaml) not found", str(error))
    missing = said[1] if said else getattr(error, "filename", None)
    if not isinstance(error, FileNotFoundError) or not missing or not (setting_up or said):
        return None
    return f"{missing}: no such file or folder; check the path of the data, or prepare it (`leapformer prepare --help`)"


def _missing_subset(error: BaseException) -> str | None:
    """fairseq names a subset of text and its folder, one of a language model and its file, or a table of speech."""
    said = re.match(r"Dataset not found: (?:(.+) \((.+)\)|(.+))$", str(error))
    if not said or not isinstance(error, FileNotFoundError):
        return None
    path = Path(said[2] or said[3])
    folder, subset = path if path.is_dir() else path.parent, said[1] or path.stem
    if not folder.is_dir():
        return f"{folder}: no such folder; check the path of the data, or prepare it (`leapformer prepare --help`)"
    files = [*folder.glob("*.idx"), *folder.glob("*.tsv")]
    known = ", ".join(sorted({file.name.partition(".")[0] for file in files}))
    if not known:
        return f"{folder} holds no prepared data; check the path, or prepare it (`leapformer prepare --help`)"
    return (
        f"{folder} holds no subset {subset!r}; it holds {known}; give one of them (--train-subset, --valid-subset, "
        "--gen-subset), or prepare it"
    )


def _damaged_dictionary(error: BaseException) -> str | None:
    inside = _locals(error, "fairseq.data.dictionary", "add_from_file")
    if inside is None or isinstance(error, OSError):
        return None
    name = getattr(inside["f"], "name", inside["f"])
    reason = re.sub(r"(Dictionary: '.*?'\.).*", r"\1", " ".join(str(error).split())).rstrip(".")
    return f"{name} is no dictionary ({reason}); give the one of the prepared data, or prepare them again"


def _dictionary_that_exists(error: BaseException) -> str | None:
    preparing = _locals(error, "fairseq_cli.preprocess", "main")
    if not isinstance(error, FileExistsError) or error.errno is not None or preparing is None:
        return None
    return f"{error} exists already; give it to --srcdict or --tgtdict, or choose another --destdir"


def _batches_below_the_longest_sample(error: BaseException) -> str | None:
    if str(error).startswith("The dataset is empty"):
        return (
            "no sample is left to train on: there is none, or all are too long; give more data, a larger --max-tokens, "
            "or a model of more --max-source-positions and --max-target-positions"
        )
    found = re.match(r"Sentences lengths should not exceed max_tokens=(\d+)", str(error))
    if not found:
        return None
    return (
        f"--max-tokens {found[1]} is less than the length of the longest sample; give more, or leave out long ones "
        "with --max-source-positions, --max-target-positions and --skip-invalid-size-inputs-valid-test"
    )


def _missing_checkpoint(error: BaseException) -> str | None:
    found = re.fullmatch(r"Model file not found: (.+)", str(error))
    return f"model file not found: {found[1]}; check the path" if found else None


def _unreadable_checkpoint(error: BaseException) -> str | None:
    """A file that is none ends in a page from pickle, zipfile or omegaconf."""
    inside = _locals(error, "fairseq.checkpoint_utils", "load_checkpoint_to_cpu")
    if inside is None or isinstance(error, OSError):  # a missing file says so itself
        return None
    return f"{inside['path']} cannot be read as a fairseq checkpoint ({_reason(error)}); give one of fairseq-train"


def _reason(error: BaseException) -> str:
    """What is wrong with a file, on one line."""
    if isinstance(error, KeyError):
        return f"it holds no {error}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    refused = [line for line in lines if "GLOBAL" in line]  # what torch calls code in a file of weights
    # torch goes on to recommend loading such files without protection.
    advice = [line for line in lines if "weights_only" in line]
    return ([*refused, *(line for line in lines if line not in advice)] or ["it is none"])[0][:200]


def _parameters_that_do_not_fit(error: BaseException) -> str | None:
    """Our model's reason for refusing a checkpoint, or the first tensor that is missing or of another shape."""
    found = re.match(r"Cannot load model parameters from checkpoint (.+); please", str(error))
    if not found:
        return None
    cause = error.__context__
    if isinstance(cause, LeapformerError):
        return str(cause)
    lines = [line.strip() for line in str(cause or "").splitlines()[1:] if line.strip()]
    what = f" ({lines[0][:160]})" if lines else ""
    return f"{found[1]} does not fit this model{what}; use the layers and sizes of its training"


def _optimizer_that_does_not_fit(error: BaseException) -> str | None:
    """The optimizer of another mechanism's parameters: torch finds it while loading, or at the first step."""
    loading = _locals(error, "fairseq.trainer", "load_checkpoint")
    if loading is not None and re.search(r"parameter group|reset the optimizer", str(error)):
        file = loading["filename"]
    elif _locals(error, "fairseq.tasks.fairseq_task", "optimizer_step") and "size of tensor" in str(error):
        training = _locals(error, "fairseq.trainer", "train_step")
        file = "the checkpoint" if training is None else training["self"].cfg.checkpoint.restore_file
    else:
        return None
    reason = str(error).replace("; please reset the optimizer (--reset-optimizer).", ":")
    return (
        f"{file}: its optimizer is that of another model or training ({reason}); give the file to "
        "--finetune-from-model instead of --restore-file, or add --reset-optimizer"
    )


def _too_long(error: BaseException) -> str | None:
    found = re.match(r"Size of sample #(\d+) is invalid \(=(.*)\) since max_positions=(.*), skip", str(error))
    if not found:
        return None
    sample, size, limit = (re.sub(r"np\.\w+\((\d+)\)", r"\1", part) for part in found.groups())
    return (
        f"sample {sample} is too long: {size} tokens or frames, the model's positions are {limit}; cut it, or "
        "leave out what is too long with --skip-invalid-size-inputs-valid-test"
    )


def _half_precision_without_gpu(error: BaseException) -> str | None:
    """fairseq's trainer fails with an assertion about CUDA. (--bf16 trains on CPUs.)"""
    trainer = (_locals(error, "fairseq.trainer") or {}).get("self")
    if trainer is None or not hasattr(trainer, "cfg"):
        return None
    import torch

    common = trainer.cfg.common
    no_gpu = common.cpu or not torch.cuda.is_available()
    asked = common.fp16 and not common.memory_efficient_fp16
    return "--fp16 needs a GPU; leave it out on a CPU" if asked and no_gpu else None


def _task_of_another_model(error: BaseException) -> str | None:
    """The task's flags clash with our architecture's, or it does not find its data: both come before the model.

    Without --task it is fairseq's `translation`.
    """
    parsing, training = _locals(error, "fairseq.options", "parse_args_and_arch"), _locals(error, "fairseq_cli.train")
    setting_up = _locals(error, "fairseq.tasks", "setup_task")
    if isinstance(error, ArgumentError) and parsing and "args" in parsing:  # both have a flag of the same name
        arch, task = getattr(parsing["args"], "arch", None), parsing["args"].task
    elif training and setting_up:
        arch, task = training["cfg"].model.arch, setting_up["task_name"]
    else:
        return None
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.tasks import TASK_REGISTRY

    served = getattr(ARCH_MODEL_REGISTRY.get(arch), "tasks", ())
    serves = not served or issubclass(TASK_REGISTRY[task], tuple(TASK_REGISTRY[name] for name in served))
    return None if serves else another_task(str(arch), served, task)


def _no_task(error: BaseException) -> str | None:
    """fairseq-validate has no default and looks up the flags of None."""
    parsing = _locals(error, "fairseq.options", "parse_args_and_arch") or {}
    missing = isinstance(error, KeyError) and "args" in parsing and getattr(parsing["args"], "task", "") is None
    return "--task is missing; give the task that the checkpoint was trained with" if missing else None


def _gradients_that_are_not_finite(error: BaseException) -> str | None:
    """fairseq looks for the first module with a NaN, and logs it.

    That search itself ends in StopIteration at an encoder, whose output is a dictionary without a tensor.
    """
    training = _locals(error, "fairseq.trainer", "train_step")
    first = error if isinstance(error, FloatingPointError) else error.__context__
    if training is None or not isinstance(first, FloatingPointError) or "Nan/Inf" not in str(first):
        return None
    trainer = training["self"]
    return (
        f"the gradients of update {trainer.get_num_updates() + 1} are NaN or infinite; lower --lr, or give a longer "
        f"--warmup-updates or a --clip-norm (the model is in {trainer.cfg.checkpoint.save_dir}/crash.pt)"
    )


def _number_of_classes(error: BaseException) -> str | None:
    inside = _locals(error, "fairseq.tasks.sentence_prediction", "setup_task")
    if inside is None or "num_classes" not in str(error):
        return None
    return (
        f"--num-classes {inside['cfg'].num_classes}: sentence_prediction needs the number of labels; give it, or "
        "--num-classes 1 with --regression-target"
    )


def _refused_options(error: BaseException) -> str | None:
    """What fairseq says of options that are missing, contradict each other, or name nothing."""
    if not isinstance(error, (ValueError, AssertionError)):
        return None
    text = " ".join(str(error).split())
    required = re.fullmatch(r"(\w+) is required!", text)
    if required:
        return f"--{required[1].replace('_', '-')} is missing; give one of those in --help"
    return text.partition(": {")[0][: errors.SHOWN] if text.startswith("--") else None


_RULES: tuple[Callable[[BaseException], str | None], ...] = (
    _in_another_process,
    _no_batch_size,
    _missing_checkpoint,
    _unreadable_checkpoint,
    _parameters_that_do_not_fit,
    _optimizer_that_does_not_fit,
    _too_long,
    _half_precision_without_gpu,
    _task_of_another_model,
    _missing_subset,
    _missing_data,
    _damaged_dictionary,
    _dictionary_that_exists,
    _batches_below_the_longest_sample,
    _no_task,
    _gradients_that_are_not_finite,
    _number_of_classes,
    _refused_options,
)

"""Explain fairseq's errors in one line: value, reason and remedy.

No function of fairseq is wrapped for this: called from Python, it raises its own errors. Commands ask for `explained`
when they end with an exception. The rules read the local variables of fairseq's frames, since its messages often lack
the value or the file.
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
    """The error for the user behind an exception of fairseq or Python; None if its traceback is more useful."""
    if isinstance(error, LeapformerError):
        return error
    if not isinstance(error, Exception):  # an interrupt has nothing to do with the frame that it interrupts
        return None
    message = next((text for rule in _RULES if (text := rule(error))), None)
    return LeapformerError(message) if message else errors.explained(error)


def print_in_one_line() -> None:
    """Make fairseq's and SimulEval's own commands end with one line if the error is the user's to correct.

    Sets `sys.excepthook`, the only hook that these commands offer, and only in a process that runs one of them: in any
    other, also that of `leapformer`, the hook belongs to the caller.
    """
    program = Path(sys.argv[0]) if sys.argv else Path()
    names = {program.stem, program.parent.name}  # bin/fairseq-train, or -m fairseq_cli.train
    if not (program.stem.startswith("fairseq-") or names & {"fairseq_cli", "simuleval"}):
        return
    previous = sys.excepthook
    if getattr(previous, "__module__", None) == __name__:  # it was set before
        return

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        explanation = explained(error)
        if explanation is None:
            previous(kind, error, trace)
        else:
            sys.stderr.write(f"leapformer: error: {one_line(explanation)}\n")

    sys.excepthook = excepthook


def another_task(arch: str, served: Sequence[str], task: str) -> str:
    """The message for an architecture that supports only the tasks `served`, used with another `task`."""
    return (
        f"architecture {arch!r} is for --task {' or '.join(served)}, not for {task}; choose an architecture for it "
        "(`leapformer list`), give the checkpoint of one, or change --task"
    )


def _locals(error: BaseException, module: str, function: str | None = None) -> dict[str, Any] | None:
    """The local variables of the innermost frame in this module, and function if given, that the error passed through.

    None if it passed through none.
    """
    for frame in frames(error):
        if frame.f_globals.get("__name__") == module and function in (None, frame.f_code.co_name):
            return frame.f_locals
    return None


def _in_another_process(error: BaseException) -> str | None:
    """One of our errors, raised in a process that torch spawned: torch re-raises it as text with a traceback."""
    match = re.search(rf"\.{LeapformerError.__name__}: (.+)\s*\Z", str(error))
    return match[1].strip() if match else None


def _no_batch_size(error: BaseException) -> str | None:
    missing = isinstance(error, AssertionError) and str(error).startswith("Must specify batch size")
    return "the batch size is missing; give --max-tokens or --batch-size" if missing else None


def _missing_data(error: BaseException) -> str | None:
    """A task cannot find a file of its data, or cannot tell the languages from the names of the files."""
    setting_up = _locals(error, "fairseq.tasks", "setup_task")
    if "Could not infer language pair" in str(error) and setting_up:
        return (
            f"{setting_up['cfg'].data}: no data of two languages; give the folder that `leapformer preprocess` wrote, "
            "or name the languages of its dictionaries with --source-lang and --target-lang"
        )
    match = re.match(r"(.+\.yaml) not found", str(error))
    missing = match[1] if match else getattr(error, "filename", None)
    if not isinstance(error, FileNotFoundError) or not missing or not (setting_up or match):
        return None
    return f"{missing}: no such file or folder; check the path of the data, or prepare it (`leapformer prepare --help`)"


def _missing_subset(error: BaseException) -> str | None:
    """A subset that is not in the data folder.

    fairseq's message has the subset and its folder (translation), the subset and its file (language model), or only
    the file (speech).
    """
    match = re.match(r"Dataset not found: (?:(.+) \((.+)\)|(.+))$", str(error))
    if not match or not isinstance(error, FileNotFoundError):
        return None
    path = Path(match[2] or match[3])
    folder, subset = path if path.is_dir() else path.parent, match[1] or path.stem
    if not folder.is_dir():
        return f"{folder}: no such folder; check the path of the data, or prepare it (`leapformer prepare --help`)"
    files = [*folder.glob("*.idx"), *folder.glob("*.tsv")]
    subsets = ", ".join(sorted({file.name.partition(".")[0] for file in files}))
    if not subsets:
        return f"{folder} holds no prepared data; check the path, or prepare it (`leapformer prepare --help`)"
    return (
        f"{folder} holds no subset {subset!r}; it holds {subsets}; give one of them (--train-subset, --valid-subset, "
        "--gen-subset), or prepare it"
    )


def _damaged_dictionary(error: BaseException) -> str | None:
    inside = _locals(error, "fairseq.data.dictionary", "add_from_file")
    if inside is None or isinstance(error, OSError):
        return None
    name = getattr(inside["f"], "name", inside["f"])
    reason = re.sub(r"(Dictionary: '.*?'\.).*", r"\1", " ".join(str(error).split())).rstrip(".")
    return f"{name} is not a dictionary ({reason}); give that of the prepared data, or prepare the data again"


def _dictionary_that_exists(error: BaseException) -> str | None:
    preparing = _locals(error, "fairseq_cli.preprocess", "main")
    if not isinstance(error, FileExistsError) or error.errno is not None or preparing is None:
        return None
    remedy = "choose another --destdir, or delete it"
    return f"{error} exists already; give it to --srcdict or --tgtdict, {remedy}"


def _batches_below_the_longest_sample(error: BaseException) -> str | None:
    if str(error).startswith("The dataset is empty"):
        return (
            "no sample is left to train on: there is none, or all are too long; give more data, a larger --max-tokens, "
            "or a model of more --max-source-positions and --max-target-positions"
        )
    match = re.match(r"Sentences lengths should not exceed max_tokens=(\d+)", str(error))
    if not match:
        return None
    return (
        f"--max-tokens {match[1]} is less than the length of the longest sample; give more, or leave out long ones "
        "with --max-source-positions, --max-target-positions and --skip-invalid-size-inputs-valid-test"
    )


def _missing_checkpoint(error: BaseException) -> str | None:
    match = re.fullmatch(r"Model file not found: (.+)", str(error))
    return f"model file not found: {match[1]}; check the path" if match else None


def _unreadable_checkpoint(error: BaseException) -> str | None:
    """A file that is not a checkpoint: pickle, zipfile and omegaconf each fill a screen about it."""
    inside = _locals(error, "fairseq.checkpoint_utils", "load_checkpoint_to_cpu")
    if inside is None or isinstance(error, OSError):  # a missing file says so itself
        return None
    return f"{inside['path']} cannot be read as a fairseq checkpoint ({reason_of(error)}); give one of fairseq-train"


def reason_of(error: BaseException) -> str:
    """What is wrong with a checkpoint file, on one line."""
    if isinstance(error, KeyError):  # of a key that is missing, or of a byte that is none of pickle's
        return f"it holds no {error}" if isinstance(error.args[0], str) else "it is not one"
    if isinstance(error, EOFError):
        return "it is cut off"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    refused = [line for line in lines if "GLOBAL" in line]  # torch names the refused class or function so
    # Leave out torch's advice, which is to load the file without protection.
    advice = [line for line in lines if "weights_only" in line]
    return ([*refused, *(line for line in lines if line not in advice)] or ["it is not one"])[0][:200]


def _parameters_that_do_not_fit(error: BaseException) -> str | None:
    """Our model's reason for refusing a checkpoint, or the first tensor that is missing or has another shape."""
    loading = _locals(error, "fairseq.checkpoint_utils", "load_model_ensemble_and_task")
    if loading is not None and "loading state_dict for" in (lines := str(error).splitlines())[0]:
        reason = lines[1].strip().rstrip(".")[:200] if len(lines) > 1 else lines[0]
        if any(re.search(r"size mismatch for .*embed_tokens", line) for line in lines):
            return (
                f"{loading['filename']}: the dictionaries of the data are not of its size ({reason}); give the data "
                "that it was trained with"
            )
        return (
            f"{loading['filename']}: its parameters are not those of a model with its options ({reason}); give a "
            "checkpoint as fairseq-train wrote it, or the --user-dir of its model"
        )
    match = re.match(r"Cannot load model parameters from checkpoint (.+); please", str(error))
    if not match:
        return None
    cause = error.__context__
    if isinstance(cause, LeapformerError):
        return str(cause)
    lines = [line.strip() for line in str(cause or "").splitlines()[1:] if line.strip()]
    mismatch = f" ({lines[0][:160]})" if lines else ""
    return f"{match[1]} does not fit this model{mismatch}; use the layers and sizes of its training"


def _optimizer_that_does_not_fit(error: BaseException) -> str | None:
    """The optimizer state of another model: torch notices while loading it, or only at the first step."""
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
        f"{file}: its optimizer state belongs to another model or training ({reason}); give the file to "
        "--finetune-from-model instead of --restore-file, or add --reset-optimizer"
    )


def _too_long(error: BaseException) -> str | None:
    match = re.match(r"Size of sample #(\d+) is invalid \(=(.*)\) since max_positions=(.*), skip", str(error))
    if not match:
        return None
    # numpy 2 prints np.int64(7) inside a tuple.
    sample, size, limit = (re.sub(r"np\.\w+\((\d+)\)", r"\1", part) for part in match.groups())
    return (
        f"sample {sample} is too long: {size} tokens or frames, the model's positions are {limit}; cut it, or "
        "leave out samples that are too long with --skip-invalid-size-inputs-valid-test"
    )


def _half_precision_without_gpu(error: BaseException) -> str | None:
    """--fp16 on a CPU, where fairseq's trainer fails with an assertion about CUDA; --bf16 works there."""
    trainer = (_locals(error, "fairseq.trainer") or {}).get("self")
    if trainer is None or not hasattr(trainer, "cfg"):
        return None
    import torch

    common = trainer.cfg.common
    no_gpu = common.cpu or not torch.cuda.is_available()
    fp16 = common.fp16 and not common.memory_efficient_fp16
    return "--fp16 needs a GPU; leave it out on a CPU" if fp16 and no_gpu else None


def _task_of_another_model(error: BaseException) -> str | None:
    """A task that our architecture does not support, such as fairseq's default, `translation`.

    It fails before the model could refuse it: its flags clash with the architecture's, or its data are not there.
    """
    parsing, training = _locals(error, "fairseq.options", "parse_args_and_arch"), _locals(error, "fairseq_cli.train")
    setting_up = _locals(error, "fairseq.tasks", "setup_task")
    if isinstance(error, ArgumentError) and parsing and "args" in parsing:  # task and model define the same flag
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
    """fairseq-validate has no default task, and looks up the flags of None."""
    parsing = _locals(error, "fairseq.options", "parse_args_and_arch") or {}
    missing = isinstance(error, KeyError) and "args" in parsing and getattr(parsing["args"], "task", "") is None
    return "--task is missing; give the task that the checkpoint was trained with" if missing else None


def _gradients_that_are_not_finite(error: BaseException) -> str | None:
    """Gradients that are NaN or infinite."""
    training = _locals(error, "fairseq.trainer", "train_step")
    # fairseq then searches for the first module with a NaN. The search itself raises StopIteration at an encoder,
    # whose output is a dictionary, so the error of interest is the one that was being handled.
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
    """Options that fairseq itself calls missing, contradictory or unknown: its text is good enough."""
    if not isinstance(error, (ValueError, AssertionError)):
        return None
    text = " ".join(str(error).split())
    required = re.fullmatch(r"(\w+) is required!", text)
    if required:
        return f"--{required[1].replace('_', '-')} is missing; give one of those in --help"
    if text.endswith("requires a joined dictionary"):
        return f"{text}, and those of the data differ; give the data of the training, or prepare it with one dictionary"
    return text.partition(": {")[0][: errors.SHOWN] if text.startswith("--") else None  # ": {" starts a dumped config


# The first rule that returns a message wins: the general ones, `_missing_data` and `_refused_options`, come after those
# for the same exceptions with a more specific reason.
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

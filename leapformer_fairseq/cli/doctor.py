"""`leapformer doctor`: versions, devices, and what was patched in fairseq."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from .. import PLUGIN_DIR, __version__

OPTIONS = ""
REQUIRED = ("torch", "numpy", "scipy", "sacrebleu", "sentencepiece", "soundfile", "onnxruntime")
FAIRSEQ = "fairseq-fixed"
OPTIONAL = ("simuleval", "torchaudio", "flash-linear-attention")  # not needed to train or generate
ABSENT = "not installed"


def run() -> int:
    """Print the report; the status is 1 if a required library is missing."""
    print(f"leapformer-fairseq {__version__} in {PLUGIN_DIR}")
    print(f"Python {platform.python_version()} on {platform.platform()}")
    versions = {name: _version(name) for name in (*REQUIRED, FAIRSEQ, *OPTIONAL)}
    for name, installed in versions.items():
        print(f"  {name:24}{installed}{' (optional)' if name in OPTIONAL else ''}")
    if versions["torch"] != ABSENT:
        print(f"Device: {_device()}")
        _print_dispatch()
    if find_spec("fairseq") is not None:
        _print_patches()
    missing = [name for name in (*REQUIRED, FAIRSEQ) if versions[name] == ABSENT]
    if missing:
        print(f"Missing: {', '.join(missing)}; run `bash scripts/setup.sh`")
        return 1
    print("Everything needed is installed.")
    return 0


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ABSENT


def _device() -> str:
    import torch

    threads = f"CPU with {torch.get_num_threads()} threads"
    if not torch.cuda.is_available():
        return f"{threads}; no CUDA device"
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"{threads}; CUDA {torch.version.cuda}: {', '.join(names)}"


def _print_dispatch() -> None:
    """Print whether kernels in C run, why not, and the bounds that choose between implementations."""
    from dataclasses import asdict

    import torch

    from ..attention.ops import cpu, dispatch

    off = cpu.reason()
    allowed = dispatch.bounds(torch.device("cpu")).kernels
    whole = off or (None if allowed else f"{dispatch.VARIABLE} says kernels=False")
    for what, why in (("Decoding step", off), ("Whole sequences", whole)):
        print(f"{what} on a CPU: {'compiled' if why is None else f'in PyTorch ({why})'}")
    for device in dispatch.BOUNDS:
        bounds = asdict(dispatch.bounds(torch.device(device)))
        source = bounds.pop("source")
        print(f"Dispatch on {device} ({source}; {dispatch.VARIABLE} changes it):")
        print("  " + ", ".join(f"{name} {value}" for name, value in bounds.items()))


def _print_patches() -> None:
    from ..compat import patches

    applied = {patch.name for patch in patches.apply()}
    print("Patches of fairseq:")
    for patch in patches.PATCHES:
        print(f"  {patch.name:26}{'applied' if patch.name in applied else 'not needed'}; for {patch.applies_to}")
        print(f"  {'':26}{patch.reason}")

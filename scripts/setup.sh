#!/usr/bin/env bash
# Creates or reuses .venv and installs the package with pinned versions. A second run has nothing to do and is instant.
#
# Hashes are checked of everything but PyTorch, whose CPU and CUDA builds are different files with different dependencies.
#
#   PYTHON      interpreter to make .venv with (default: the first of python3.11, 3.12, 3.13, python3 that is 3.11+)
#   TORCH_SPEC  what to give to `pip install` for PyTorch, e.g. "torch==2.13.0 --index-url https://..."
#               (default: torch==2.13.0, the CPU build unless a CUDA device is present)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly TORCH=torch==2.13.0
readonly CPU_INDEX=https://download.pytorch.org/whl/cpu
readonly CONSTRAINTS=requirements/constraints.txt
readonly HASHES=requirements/hashes.txt
readonly BUILD_TOOLS="setuptools|wheel|numpy|cython|ninja|packaging"
readonly STAMP=.venv/.setup-stamp
readonly VENV_PYTHON=.venv/bin/python
step="starting"
trap '(($? == 0)) || echo "setup.sh: failed while $step; the messages above say why" >&2' EXIT

say() {
    step=$1
    echo "[setup ${SECONDS}s] $step"
}

pip_install() {
    "$VENV_PYTHON" -m pip install --quiet --disable-pip-version-check --constraint "$CONSTRAINTS" "$@"
}

# Installs from the list of hashes: `install_hashed "A|B" 1` A and B, `install_hashed "A|B" 0` all others.
install_hashed() {
    pip_install --no-deps --no-build-isolation --require-hashes --requirement \
        <(awk -v names="^($1)==" -v wanted="$2" '/^[^ ]/ { chosen = ($0 ~ names) == wanted } chosen' "$HASHES")
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

choose_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
        if is_new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "setup.sh: no Python 3.11 or newer found; set PYTHON=/path/to/python3.11" >&2
    return 1
}

has_cuda() {
    nvidia-smi -L >/dev/null 2>&1
}

install_torch() {
    if [[ -n ${TORCH_SPEC:-} ]]; then
        # shellcheck disable=SC2086  # may hold options besides the requirement
        pip_install $TORCH_SPEC
    elif has_cuda; then
        pip_install "$TORCH"
    else
        # A configured index or folder may offer the CPU build; else PyTorch's own index; PyPI's CUDA build works, too.
        pip_install "$TORCH+cpu" 2>/dev/null ||
            pip_install "$TORCH" --index-url "$CPU_INDEX" --retries 1 --timeout 20 2>/dev/null ||
            pip_install "$TORCH"
    fi
}

install_fairseq() {
    # Its build requires any torch, so an isolated build would download a second one, with CUDA, and compile against it.
    install_hashed fairseq-fixed 1
}

fingerprint() {
    {
        cat setup.py pyproject.toml "$CONSTRAINTS" "$HASHES" scripts/setup.sh
        echo "$PWD ${TORCH_SPEC:-$TORCH} $(has_cuda && echo cuda)"
        "$VENV_PYTHON" --version
    } | sha256sum
}

if ! is_new_enough "$VENV_PYTHON"; then
    say "creating .venv"
    python=$(choose_python)
    "$python" -m venv --clear .venv
fi
if [[ -f $STAMP && $(fingerprint) == "$(<"$STAMP")" ]]; then
    exit 0
fi
rm -f "$STAMP"
say "installing build tools"
install_hashed "$BUILD_TOOLS" 1
say "installing libraries"
install_hashed "$BUILD_TOOLS|fairseq-fixed" 0
say "installing PyTorch (${TORCH_SPEC:-$TORCH})"
install_torch
say "installing fairseq (compiled the first time: some minutes, a C++ compiler and Python headers)"
install_fairseq
say "installing the package"
pip_install --no-deps --no-build-isolation --editable .
say "checking the installation"
report=$(.venv/bin/leapformer doctor 2>&1) || {
    echo "$report" >&2
    exit 1
}
fingerprint >"$STAMP"
say "done: $(.venv/bin/leapformer --version) in .venv"

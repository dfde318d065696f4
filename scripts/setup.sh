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
# What is needed before the libraries: to compile fairseq, and by PyTorch.
readonly FIRST="setuptools|wheel|numpy|cython|ninja|packaging|filelock|fsspec|jinja2|markupsafe|mpmath|networkx|sympy|\
typing-extensions"
readonly STAMP=.venv/.setup-stamp
readonly WHEELS=.venv/wheels
readonly VENV_PYTHON=.venv/bin/python
step="starting"
building=
trap 'status=$?; [[ -z $building ]] || kill "$building" 2>/dev/null; ((status == 0)) ||
    echo "setup.sh: failed while $step; the messages above say why" >&2' EXIT

say() {
    step=$1
    echo "[setup ${SECONDS}s] $step"
}

# pip compiles Python's modules one after the other, which is half of its time: they are compiled at the end, on all cores.
pip_install() {
    "$VENV_PYTHON" -m pip install --quiet --disable-pip-version-check --no-compile --constraint "$CONSTRAINTS" "$@"
}

# Lines of the list of hashes: `hashed "A|B" 1` those of A and B, `hashed "A|B" 0` all others.
hashed() {
    awk -v names="^($1)==" -v wanted="$2" '/^[^ ]/ { chosen = ($0 ~ names) == wanted } chosen' "$HASHES"
}

install_hashed() {
    pip_install --no-deps --no-build-isolation --require-hashes --requirement <(hashed "$@")
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

# Builds the wheel of fairseq, or finds it in the cache of pip. Its build requires any torch, so an isolated build would
# download a second one, with CUDA, and compile against it. Debug information would take a third of the time.
build_fairseq() {
    CFLAGS="-g0 ${CFLAGS:-}" "$VENV_PYTHON" -m pip wheel --quiet --disable-pip-version-check --no-deps \
        --no-build-isolation --require-hashes --requirement <(hashed fairseq-fixed 1) --wheel-dir "$WHEELS"
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
install_hashed "$FIRST" 1
say "installing PyTorch (${TORCH_SPEC:-$TORCH}), compiling fairseq the first time (needs a C++ compiler and Python \
headers), and installing libraries beside it"
{ install_torch && build_fairseq; } &
building=$!
step="installing libraries"
install_hashed "$FIRST|fairseq-fixed" 0
step="installing PyTorch and compiling fairseq"
wait "$building"
building=
say "installing fairseq"
pip_install --no-deps "$WHEELS"/fairseq_fixed-*.whl
rm -r "$WHEELS"
say "installing the package"
pip_install --no-deps --no-build-isolation --editable .
say "compiling Python modules"
# Tests of packages are left out; templates, which are not Python, cannot be compiled.
"$VENV_PYTHON" -m compileall -qq -j 0 -x '/tests?/|/testing/|/benchmarks/|/pip/|/setuptools/' .venv/lib || true
say "checking the installation"
report=$(.venv/bin/leapformer doctor 2>&1) || {
    echo "$report" >&2
    exit 1
}
fingerprint >"$STAMP"
say "done: $(.venv/bin/leapformer --version) in .venv"

#!/usr/bin/env bash
# Sets up .venv, then runs lint, type check and tests. --all runs the full tier: whole products of cases, long runs.
# Other arguments go to pytest: bash scripts/test.sh -k compat
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! bash scripts/setup.sh; then
    echo "FAILED: setup"
    exit 1
fi

failed=()
check() {
    local name=$1
    shift
    echo "== $name"
    "$@" || failed+=("$name")
}

check ruff .venv/bin/ruff check .
check format .venv/bin/ruff format --check --quiet .
check mypy .venv/bin/mypy
# Files of tests go to two workers, the longest first (tests/costs.json).
check pytest .venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 30 --durations-min 3 "$@"

if ((${#failed[@]})); then
    echo "FAILED: ${failed[*]}"
    exit 1
fi
echo "PASSED: ruff, format, mypy and pytest"

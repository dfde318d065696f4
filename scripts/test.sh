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
# Types are checked beside the tests, and told of after them.
types=$(mktemp)
trap 'rm -f "$types"' EXIT
.venv/bin/mypy >"$types" 2>&1 &
mypy=$!
told() {
    local status=0
    wait "$mypy" || status=$?
    cat "$types"
    return "$status"
}
# Files of tests go to two workers, the longest first (tests/costs.json).
check pytest .venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 30 --durations-min 3 "$@"
check mypy told

if ((${#failed[@]})); then
    echo "FAILED: ${failed[*]}"
    exit 1
fi
echo "PASSED: ruff, format, mypy and pytest"

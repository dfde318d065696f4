#!/usr/bin/env bash
# Applies one-line mistakes (tests/mutants/*.yaml) to copies of the tree, and writes which of them the tests notice.
# bash scripts/mutants.sh --help lists the options.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec .venv/bin/python tests/mutants/run.py "$@"

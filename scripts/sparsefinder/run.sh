#!/usr/bin/env bash
# leapformer recipe sparsefinder, in .venv: bash scripts/sparsefinder/run.sh [STEP ...] --out DIR [OPTIONS]; --help says which.
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" sparsefinder "$@"

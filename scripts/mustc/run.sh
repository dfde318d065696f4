#!/usr/bin/env bash
# leapformer recipe mustc, in .venv: bash scripts/mustc/run.sh [STEP ...] --out DIR [OPTIONS]; --help says which.
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" mustc "$@"

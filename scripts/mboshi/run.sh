#!/usr/bin/env bash
# leapformer recipe mboshi, in .venv: bash scripts/mboshi/run.sh [STEP ...] --out DIR [OPTIONS]; --help says which.
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" mboshi "$@"

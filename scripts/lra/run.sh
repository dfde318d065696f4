#!/usr/bin/env bash
# leapformer recipe lra, in .venv: bash scripts/lra/run.sh [STEP ...] --out DIR [OPTIONS]; --help says which.
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" lra "$@"

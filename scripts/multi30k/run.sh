#!/usr/bin/env bash
# leapformer recipe multi30k, in .venv: bash scripts/multi30k/run.sh [STEP ...] --out DIR [OPTIONS]; --help says which.
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" multi30k "$@"

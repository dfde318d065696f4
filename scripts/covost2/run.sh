#!/usr/bin/env bash
# leapformer recipe covost2, in .venv: bash scripts/covost2/run.sh [STEP ...] --out DIR [OPTIONS]; --help says which.
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" covost2 "$@"

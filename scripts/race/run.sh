#!/usr/bin/env bash
# leapformer recipe race, in .venv: bash scripts/race/run.sh [STEP ...] --out DIR [OPTIONS]; --help says which.
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" race "$@"

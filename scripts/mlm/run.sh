#!/usr/bin/env bash
# leapformer recipe mlm, in .venv: bash scripts/mlm/run.sh [STEP ...] --out DIR [OPTIONS]; --help says which.
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" mlm "$@"

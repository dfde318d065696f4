#!/usr/bin/env bash
# leapformer recipe wmt14_ende, in .venv: bash scripts/wmt14_ende/run.sh [STEP ...] --out DIR [OPTIONS]; --help says which.
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" wmt14_ende "$@"

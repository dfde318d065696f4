#!/usr/bin/env bash
# leapformer recipe translation, in .venv: bash scripts/translation/run.sh [STEP ...] --out DIR [OPTIONS]; --help says which.
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" translation "$@"

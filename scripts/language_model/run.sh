#!/usr/bin/env bash
# leapformer recipe language_model, in .venv: bash scripts/language_model/run.sh [STEP ...] --out DIR [OPTIONS]; --help says which.
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" language_model "$@"

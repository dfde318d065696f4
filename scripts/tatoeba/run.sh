#!/usr/bin/env bash
# leapformer recipe tatoeba, in .venv: bash scripts/tatoeba/run.sh [STEP ...] --out DIR [OPTIONS]; --help says which.
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" tatoeba "$@"

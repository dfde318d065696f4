#!/usr/bin/env bash
# leapformer recipe talks, in .venv: bash scripts/talks/run.sh [STEP ...] --out DIR [OPTIONS]; --help says which.
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" talks "$@"

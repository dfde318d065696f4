#!/usr/bin/env bash
# leapformer recipe glue, in .venv: bash scripts/glue/run.sh [STEP ...] --out DIR [OPTIONS]; --help says which.
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" glue "$@"

#!/usr/bin/env bash
# leapformer recipe csqa, in .venv: bash scripts/csqa/run.sh [STEP ...] --out DIR [OPTIONS]; --help says which.
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" csqa "$@"

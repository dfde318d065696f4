#!/usr/bin/env bash
# leapformer recipe iwslt17, in .venv: bash scripts/iwslt17/run.sh [STEP ...] --out DIR [OPTIONS]; --help says which.
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" iwslt17 "$@"

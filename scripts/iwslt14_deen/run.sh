#!/usr/bin/env bash
# leapformer recipe iwslt14_deen, in .venv: bash scripts/iwslt14_deen/run.sh [STEP ...] --out DIR [OPTIONS]; --help says which.
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" iwslt14_deen "$@"

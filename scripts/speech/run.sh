#!/usr/bin/env bash
# leapformer recipe speech, in .venv: bash scripts/speech/run.sh [STEP ...] --out DIR [OPTIONS]; --help says which.
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" speech "$@"

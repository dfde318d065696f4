#!/usr/bin/env bash
# leapformer recipe ljspeech, in .venv: bash scripts/ljspeech/run.sh [STEP ...] --out DIR [OPTIONS]; --help says which.
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" ljspeech "$@"

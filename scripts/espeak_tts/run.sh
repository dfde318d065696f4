#!/usr/bin/env bash
# leapformer recipe espeak_tts, in .venv: bash scripts/espeak_tts/run.sh [STEP ...] --out DIR [OPTIONS]; --help says which.
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" espeak_tts "$@"

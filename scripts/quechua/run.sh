#!/usr/bin/env bash
# leapformer recipe quechua, in .venv: bash scripts/quechua/run.sh [STEP ...] --out DIR [OPTIONS]; --help says which.
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" quechua "$@"

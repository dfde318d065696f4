#!/usr/bin/env bash
# leapformer recipe python_docs, in .venv: bash scripts/python_docs/run.sh [STEP ...] --out DIR [OPTIONS]; --help says which.
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" python_docs "$@"

#!/usr/bin/env bash
# leapformer recipe iwslt14_esen_doc, in .venv: bash scripts/iwslt14_esen_doc/run.sh [STEP ...] --out DIR [OPTIONS]; --help says which.
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" iwslt14_esen_doc "$@"

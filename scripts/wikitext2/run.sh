#!/usr/bin/env bash
# leapformer recipe wikitext2, in .venv: bash scripts/wikitext2/run.sh [STEP ...] --out DIR [OPTIONS]; --help says which.
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" wikitext2 "$@"

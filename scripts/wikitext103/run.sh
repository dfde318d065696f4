#!/usr/bin/env bash
# leapformer recipe wikitext103, in .venv: bash scripts/wikitext103/run.sh [STEP ...] --out DIR [OPTIONS]; --help says which.
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" wikitext103 "$@"

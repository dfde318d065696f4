#!/usr/bin/env bash
# Runs a recipe in .venv, which is set up first, or in LEAPFORMER_VENV. Without a name it lists all recipes.
#
#   bash scripts/recipe.sh NAME [STEP ...] [OPTIONS]      as in: bash scripts/recipe.sh multi30k train --out results/multi30k
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [[ -n ${LEAPFORMER_VENV:-} ]]; then
    venv=$LEAPFORMER_VENV
else
    bash "$ROOT/scripts/setup.sh"
    venv=$ROOT/.venv
fi
PATH="$venv/bin:$PATH" exec "$venv/bin/leapformer" recipe "$@"

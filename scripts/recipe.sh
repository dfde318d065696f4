# Sets up .venv, or takes LEAPFORMER_VENV as it is, and runs a recipe, or another $COMMAND. Sourced by all recipes:
#
#   . recipe.sh NAME [STEP ...] [OPTIONS]
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [[ -n ${LEAPFORMER_VENV:-} ]]; then
    venv=$LEAPFORMER_VENV
else
    bash "$ROOT/scripts/setup.sh"
    venv=$ROOT/.venv
fi
PATH="$venv/bin:$PATH" exec "$venv/bin/leapformer" "${COMMAND:-recipe}" "$@"

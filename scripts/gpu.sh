#!/usr/bin/env bash
# Checks and times everything on one GPU, in nine minutes at most: bash scripts/gpu.sh [--device cpu] [--fast] [--out DIR]
#
# Needs a Python with torch, nothing else, and downloads nothing. PYTHON names one; else it is that of .venv, or python3.
# Results: docs/results/raw/gpu/gpu.md and gpu.json. The status is 1 if a check failed.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

for python in "${PYTHON:-}" "$ROOT/.venv/bin/python" python3 python; do
    if [[ -n $python ]] && "$python" -c 'import sys, torch; assert sys.version_info >= (3, 11)' 2>/dev/null; then
        export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
        exec "$python" -m leapformer_fairseq.studies.benchmarks.gpu "$@"
    fi
done
echo "gpu.sh: no Python of 3.11 or newer with torch; name one: PYTHON=/path/to/python bash scripts/gpu.sh" >&2
exit 2

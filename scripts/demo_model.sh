#!/usr/bin/env bash
# Makes the model of `leapformer demo` from a folder of the quickstart, in .venv or $LEAPFORMER_VENV:
#
#   bash scripts/demo_model.sh [FOLDER] [UTTERANCE]
#
# FOLDER (default: results/quickstart) has the checkpoint that its first simulation was made with; it is exported with 8
# bits. UTTERANCE is the example, as in test_00001 (default: of the test set's utterances of 2.5 to 3.5 s, the first that
# the exported model translates as in the reference).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
FOLDER=${1:-results/quickstart}
if [[ ! -f $FOLDER/commands.sh ]]; then
    echo "demo_model.sh: $FOLDER has no commands.sh; run \`bash scripts/quickstart.sh\` first, or give its --out" >&2
    exit 2
fi
PYTHON=${LEAPFORMER_VENV:-.venv}/bin/python
DEMO=leapformer_fairseq/runtime/demo
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

# The value of an option in the first simulation of LeaPformer.
given() {
    grep -E -m 1 -- '--checkpoint [^ ]*leap' "$FOLDER/commands.sh" | grep -oP -- "--$1 \K[^ ]+"
}

"$PYTHON" -m leapformer_fairseq.cli.main export --path "$(given checkpoint)" --data "$(given data-root)" \
    --config-yaml "$(given config-yaml)" --quantize --check 20 --out "$made/model"
"$PYTHON" scripts/demo_example.py "$FOLDER" "$(given data-root)" "$made" "${2:-}"
rm -rf "$DEMO"
mkdir -p "$DEMO"
cp -r "$made"/. "$DEMO"
"$PYTHON" -m leapformer_fairseq.runtime demo --no-live

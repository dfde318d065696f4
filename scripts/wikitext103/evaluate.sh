#!/usr/bin/env bash
# Perplexity of models trained on prepared WikiText-103, and the table. See --help.
set -euo pipefail
dataset=wikitext103 paper=leapformer
. "$(dirname "$0")/../lm.sh"
recipe evaluate "$@"

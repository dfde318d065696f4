#!/usr/bin/env bash
# Perplexity of models trained on prepared WikiText-2, and the table. See --help.
set -euo pipefail
dataset=wikitext2 paper=small
. "$(dirname "$0")/../lm.sh"
recipe evaluate "$@"

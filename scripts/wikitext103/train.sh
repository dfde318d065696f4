#!/usr/bin/env bash
# Language models on prepared WikiText-103. See --help.
set -euo pipefail
dataset=wikitext103 paper=leapformer
. "$(dirname "$0")/../lm.sh"
recipe train "$@"

#!/usr/bin/env bash
# Language models on prepared WikiText-2. See --help.
set -euo pipefail
dataset=wikitext2 paper=small
. "$(dirname "$0")/../lm.sh"
recipe train "$@"

#!/usr/bin/env bash
# Binary data of WikiText-103. See --help.
set -euo pipefail
dataset=wikitext103 paper=leapformer
. "$(dirname "$0")/../lm.sh"
recipe prepare "$@"

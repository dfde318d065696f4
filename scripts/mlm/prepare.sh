#!/usr/bin/env bash
# Binary data for masked language models from text. See --help.
set -euo pipefail
dataset=mlm paper=small
. "$(dirname "$0")/../mlm.sh"
recipe prepare "$@"

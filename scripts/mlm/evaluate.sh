#!/usr/bin/env bash
# Masked perplexity of trained models, and the table. See --help.
set -euo pipefail
dataset=mlm paper=small
. "$(dirname "$0")/../mlm.sh"
recipe evaluate "$@"

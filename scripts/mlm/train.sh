#!/usr/bin/env bash
# Masked language models on prepared text. See --help.
set -euo pipefail
dataset=mlm paper=small
. "$(dirname "$0")/../mlm.sh"
recipe train "$@"

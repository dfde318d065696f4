#!/usr/bin/env bash
# Accuracy of fine-tuned models on the development sets, and the table. See --help.
set -euo pipefail
dataset=glue paper=small
. "$(dirname "$0")/../glue.sh"
recipe evaluate "$@"

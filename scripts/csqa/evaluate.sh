#!/usr/bin/env bash
# Accuracy of fine-tuned models on CommonsenseQA, and the table. See --help.
set -euo pipefail
dataset=csqa paper=luna root_holds="{train,dev}_rand_split.jsonl" choices=5
. "$(dirname "$0")/../choices.sh"
recipe evaluate "$@"

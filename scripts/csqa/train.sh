#!/usr/bin/env bash
# Fine-tune pre-trained masked language models on prepared CommonsenseQA. See --help.
set -euo pipefail
dataset=csqa paper=luna root_holds="{train,dev}_rand_split.jsonl" choices=5
. "$(dirname "$0")/../choices.sh"
recipe train "$@"

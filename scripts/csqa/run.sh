#!/usr/bin/env bash
# All steps for CommonsenseQA: prepare, train, evaluate. See --help.
set -euo pipefail
dataset=csqa paper=luna root_holds="{train,dev}_rand_split.jsonl" choices=5
. "$(dirname "$0")/../choices.sh"
recipe prepare train evaluate "$@"

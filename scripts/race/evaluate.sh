#!/usr/bin/env bash
# Accuracy of fine-tuned models on RACE, and the table. See --help.
set -euo pipefail
dataset=race paper=luna root_holds="{train,dev,test}/{middle,high}/*.txt" choices=4
. "$(dirname "$0")/../choices.sh"
recipe evaluate "$@"

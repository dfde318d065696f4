#!/usr/bin/env bash
# Fine-tune pre-trained masked language models on prepared RACE. See --help.
set -euo pipefail
dataset=race paper=luna root_holds="{train,dev,test}/{middle,high}/*.txt" choices=4
. "$(dirname "$0")/../choices.sh"
recipe train "$@"

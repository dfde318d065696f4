#!/usr/bin/env bash
# Fine-tune pre-trained masked language models on prepared GLUE tasks. See --help.
set -euo pipefail
dataset=glue paper=small
. "$(dirname "$0")/../glue.sh"
recipe train "$@"

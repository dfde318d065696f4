#!/usr/bin/env bash
# All steps for masked language models: prepare, train, evaluate. See --help.
set -euo pipefail
dataset=mlm paper=small
. "$(dirname "$0")/../mlm.sh"
recipe prepare train evaluate "$@"

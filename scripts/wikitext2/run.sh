#!/usr/bin/env bash
# All steps for WikiText-2: prepare, train, evaluate. See --help.
set -euo pipefail
dataset=wikitext2 paper=small
. "$(dirname "$0")/../lm.sh"
recipe prepare train evaluate "$@"

#!/usr/bin/env bash
# All steps for WikiText-103: prepare, train, evaluate. See --help.
set -euo pipefail
dataset=wikitext103 paper=leapformer
. "$(dirname "$0")/../lm.sh"
recipe prepare train evaluate "$@"

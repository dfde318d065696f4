#!/usr/bin/env bash
# Everything for GLUE: prepare, train, evaluate. See --help.
set -euo pipefail
dataset=glue paper=small
. "$(dirname "$0")/../glue.sh"
recipe prepare train evaluate "$@"

#!/usr/bin/env bash
# All steps for GLUE: prepare, train, evaluate. See --help.
set -euo pipefail
dataset=glue paper=small
. "$(dirname "$0")/../glue.sh"
recipe prepare train evaluate "$@"

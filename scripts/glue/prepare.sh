#!/usr/bin/env bash
# Binary data of GLUE tasks. See --help.
set -euo pipefail
dataset=glue paper=small
. "$(dirname "$0")/../glue.sh"
recipe prepare "$@"

#!/usr/bin/env bash
# All steps for MuST-C English-German: prepare, pre-train, train, average, evaluate. See --help.
set -euo pipefail
dataset=mustc root_holds="en-de/data" sets="tst-COMMON tst-HE dev"
. "$(dirname "$0")/../speech.sh"
recipe prepare train evaluate "$@"

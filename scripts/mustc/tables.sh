#!/usr/bin/env bash
# Tables of the LeaPformer paper on MuST-C English-German. See --help.
set -euo pipefail
dataset=mustc root_holds="en-de/data" sets="tst-COMMON tst-HE dev" tables="5 6 10"
. "$(dirname "$0")/../speech_tables.sh"
recipe prepare tables "$@"

#!/usr/bin/env bash
# Recognition pre-training, then wait-k translation, on prepared MuST-C English-German. See --help.
set -euo pipefail
dataset=mustc root_holds="en-de/data" sets="tst-COMMON tst-HE dev"
. "$(dirname "$0")/../speech.sh"
recipe train "$@"

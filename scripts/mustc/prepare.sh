#!/usr/bin/env bash
# Features, subwords and manifests of MuST-C English-German. See --help.
set -euo pipefail
dataset=mustc root_holds="en-de/data" sets="tst-COMMON tst-HE dev"
. "$(dirname "$0")/../speech.sh"
recipe prepare "$@"

#!/usr/bin/env bash
# Subwords and binary data of WMT 2014 English-German. See --help.
set -euo pipefail
dataset=wmt14_ende paper=fairseq root_holds="{train,valid,test}.{en,de}, or the archives of the release"
. "$(dirname "$0")/../translation.sh"
recipe prepare "$@"

#!/usr/bin/env bash
# All steps for WMT 2014 English-German: prepare, train, evaluate. See --help.
set -euo pipefail
dataset=wmt14_ende paper=fairseq root_holds="{train,valid,test}.{en,de}, or the archives of the release"
. "$(dirname "$0")/../translation.sh"
recipe prepare train evaluate "$@"

#!/usr/bin/env bash
# Translates and scores the test set of prepared WMT 2014 English-German, and writes the table. See --help.
set -euo pipefail
dataset=wmt14_ende paper=fairseq root_holds="{train,valid,test}.{en,de}, or the archives of the release"
. "$(dirname "$0")/../translation.sh"
recipe evaluate "$@"

#!/usr/bin/env bash
# Translates and scores the test set of prepared IWSLT 2014 German-English, and writes the table. See --help.
set -euo pipefail
dataset=iwslt14_deen paper=fairseq root_holds="{train,valid,test}.{de,en}, or de-en.tgz of the release"
. "$(dirname "$0")/../translation.sh"
recipe evaluate "$@"

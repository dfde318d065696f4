#!/usr/bin/env bash
# Translates and scores the test set of prepared IWSLT 2017 English-German or English-French, and writes the table. See --help.
set -euo pipefail
dataset=iwslt17 paper=sparsefinder root_holds="{train,valid,test}.{en,de}, or en-de.tgz of WIT3"
. "$(dirname "$0")/../translation.sh"
recipe evaluate "$@"

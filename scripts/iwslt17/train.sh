#!/usr/bin/env bash
# Translation on prepared IWSLT 2017 English-German or English-French. See --help.
set -euo pipefail
dataset=iwslt17 paper=sparsefinder root_holds="{train,valid,test}.{en,de}, or en-de.tgz of WIT3"
. "$(dirname "$0")/../translation.sh"
recipe train "$@"

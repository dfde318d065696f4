#!/usr/bin/env bash
# All steps for IWSLT 2017 English-German or English-French: prepare, train, evaluate. See --help.
set -euo pipefail
dataset=iwslt17 paper=sparsefinder root_holds="{train,valid,test}.{en,de}, or en-de.tgz of WIT3"
. "$(dirname "$0")/../translation.sh"
recipe prepare train evaluate "$@"

#!/usr/bin/env bash
# All steps for IWSLT 2014 German-English: prepare, train, evaluate. See --help.
set -euo pipefail
dataset=iwslt14_deen paper=fairseq root_holds="{train,valid,test}.{de,en}, or de-en.tgz of the release"
. "$(dirname "$0")/../translation.sh"
recipe prepare train evaluate "$@"

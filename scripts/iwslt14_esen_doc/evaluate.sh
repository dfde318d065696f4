#!/usr/bin/env bash
# Translates and scores the test set of prepared IWSLT 2014 Spanish-English talks, and writes the table. See --help.
set -euo pipefail
dataset=iwslt14_esen_doc paper=abc root_holds="es-en.tgz of the release, or {train,valid,test}.{es,en}"
. "$(dirname "$0")/../translation.sh"
recipe evaluate "$@"

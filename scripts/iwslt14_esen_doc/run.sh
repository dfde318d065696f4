#!/usr/bin/env bash
# All steps for IWSLT 2014 Spanish-English, talks as documents: prepare, train, evaluate. See --help.
set -euo pipefail
dataset=iwslt14_esen_doc paper=abc root_holds="es-en.tgz of the release, or {train,valid,test}.{es,en}"
. "$(dirname "$0")/../translation.sh"
recipe prepare train evaluate "$@"

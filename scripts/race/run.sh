#!/usr/bin/env bash
# All steps for RACE: prepare, train, evaluate. See --help.
set -euo pipefail
dataset=race paper=luna root_holds="{train,dev,test}/{middle,high}/*.txt" choices=4
. "$(dirname "$0")/../choices.sh"
recipe prepare train evaluate "$@"

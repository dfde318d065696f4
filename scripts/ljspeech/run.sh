#!/usr/bin/env bash
# All steps for LJSpeech: prepare, train, synthesise, score. See --help.
set -euo pipefail
dataset=ljspeech paper=mla root_holds="metadata.csv and wavs"
. "$(dirname "$0")/../tts.sh"
recipe prepare train evaluate "$@"

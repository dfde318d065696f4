#!/usr/bin/env bash
# All steps for the embedded espeak-ng voice: prepare, train, synthesise, score. See --help.
set -euo pipefail
dataset=espeak_tts paper=tiny root_holds=''
. "$(dirname "$0")/../tts.sh"
. "$(dirname "$0")/corpus.sh"
recipe prepare train evaluate "$@"

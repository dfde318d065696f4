#!/usr/bin/env bash
# Prepare the data, for the embedded espeak-ng voice. See --help.
set -euo pipefail
dataset=espeak_tts paper=tiny root_holds=''
. "$(dirname "$0")/../tts.sh"
. "$(dirname "$0")/corpus.sh"
recipe prepare "$@"

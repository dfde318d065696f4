#!/usr/bin/env bash
# Predicted lengths, as in the MLA paper's tables 1, 2, 3 and 11, for the embedded espeak-ng voice. See --help.
set -euo pipefail
dataset=espeak_tts paper=tiny root_holds=''
. "$(dirname "$0")/../tts.sh"
. "$(dirname "$0")/corpus.sh"
. "$(dirname "$0")/../tts_sweep.sh"
recipe prepare sweep "$@"

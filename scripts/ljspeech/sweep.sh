#!/usr/bin/env bash
# Predicted lengths, as in the MLA paper's tables 1, 2, 3 and 11, for LJSpeech. See --help.
set -euo pipefail
dataset=ljspeech paper=mla root_holds="metadata.csv and wavs"
. "$(dirname "$0")/../tts.sh"
. "$(dirname "$0")/../tts_sweep.sh"
recipe prepare sweep "$@"

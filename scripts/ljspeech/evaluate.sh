#!/usr/bin/env bash
# Speak the test sentences and score them, for LJSpeech. See --help.
set -euo pipefail
dataset=ljspeech paper=mla root_holds="metadata.csv and wavs"
. "$(dirname "$0")/../tts.sh"
recipe evaluate "$@"

#!/usr/bin/env bash
# Everything: prepare, train, speak, score, for LJSpeech. See --help.
set -euo pipefail
dataset=ljspeech paper=mla root_holds="metadata.csv and wavs"
. "$(dirname "$0")/../tts.sh"
recipe prepare train evaluate "$@"

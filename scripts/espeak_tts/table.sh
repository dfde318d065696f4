#!/usr/bin/env bash
# Which attention block can be linear in text to speech, and with which length predictor. See --help.
set -euo pipefail
dataset=espeak_tts paper=tiny root_holds=''
. "$(dirname "$0")/../tts.sh"
. "$(dirname "$0")/corpus.sh"

value_options=${value_options/--attention/--plans}

usage() {
    cat <<HELP
usage: bash scripts/espeak_tts/table.sh --out DIR [OPTIONS]

Trains softmax, cosformer (everywhere, with relu in the decoder's self-attention, in cross-attention only) and leap (in
cross-attention, everywhere) with the same budget, sequentially; each synthesises the unseen sentences, cosformer with
every length predictor; OUT/speech/table.md compares them. Repeat the command to resume.

$(usage_of_data)
  --out DIR             prepared data and runs
  --plans LIST          train only these, in quotes, each ENCODER/DECODER/CROSS or one for all
  --predictors LIST     of ratio, lookup, conv, oracle (default: all)
  --seed, --pictures, --paper, --train-options, --tts-options
                        as in scripts/espeak_tts/run.sh
  --dry-run             print the settings, do nothing
  --help                this text
HELP
}

step_table() {
    local attention
    for attention in $plans; do
        step_train
        step_speak
    done
    step_score
}

plans="softmax cosformer cosformer/relu/cosformer softmax/softmax/cosformer softmax/softmax/leap leap"
predictors="ratio lookup conv oracle"
recipe prepare table "$@"

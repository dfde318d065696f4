# The sweeps over predicted lengths of the MLA paper (tables 1, 2, 11), all from one trained model where the paper does
# so. A script sets its data set and sources this after tts.sh:
#
#   recipe prepare sweep "$@"

value_options+=" --ratios --dampenings"
flag_options+=" --sizes"

usage() {
    cat <<HELP
usage: bash scripts/$dataset/sweep.sh --out DIR [OPTIONS]

Trains one model with cosFormer in cross-attention, and speaks the test sentences with many predicted lengths: constant
length ratios (table 1 of the MLA paper, arXiv:2304.08453), mean durations of phonemes divided by a dampening factor
(table 2; needs durations), and the network (table 3). OUT/speech/table.md compares distortions, and the predicted with
the true lengths. Repeat the command to resume.

$(usage_of_data)
  --out DIR             prepared data and runs
  --ratios LIST         decoder steps for a phoneme, in quotes (default: 0.5 0.6 0.75 1.0 1.25 1.5 1.75)
  --dampenings LIST     in quotes (default: 1.1 1.0 0.9)
  --sizes               also train models whose network is twice as wide, or has three convolutions (table 11)
  --attention, --seed, --pictures, --paper, --train-options, --tts-options
                        as in scripts/$dataset/run.sh
  --dry-run             print the settings, do nothing
  --help                this text
HELP
}

eval "sweep_$(declare -f defaults)" # those of the recipe, and
defaults() {
    sweep_defaults
    attention=softmax/softmax/cosformer sizes=''
    ratios="0.5 0.6 0.75 1.0 1.25 1.5 1.75" dampenings="1.1 1.0 0.9"
}

eval "sweep_$(declare -f finish_options)" # those of the recipe, and
finish_options() {
    local value
    sweep_finish_options
    for value in $ratios; do
        positive --ratios "$value"
    done
    for value in $dampenings; do
        positive --dampenings "$value"
    done
}

step_sweep() {
    local run speech=$out/speech name value size base=$attention
    for size in '' ${sizes:+length-hidden=256 length-layers=3}; do
        attention=$base${size:+:$size}
        step_train
        predictors=conv step_speak
    done
    attention=$base
    name=$(file_name "$attention")-seed$seed run=$out/$(file_name "$attention")-seed$seed
    for value in $ratios; do
        speak "$speech/$name-ratio$value" \
            --model-overrides "{'length_predictor': 'ratio', 'length_ratio': $value}"
    done
    for value in $dampenings; do
        speak "$speech/$name-lookup$value" \
            --model-overrides "{'length_predictor': 'lookup', 'length_dampening': $value}"
    done
    step_score
}

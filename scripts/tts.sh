# The steps of the recipes for text to speech: espeak_tts and ljspeech. A script sets its data set and sources this:
#
#   dataset=ljspeech paper=mla root_holds="metadata.csv and wavs"
#   . "$(dirname "$0")/../tts.sh"
#   recipe prepare train evaluate "$@"
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

value_options="--root --out --attention --predictors --seed --pictures --workers --textgrids"
list_options="--train-options --tts-options"
flag_options="--download"

usage() {
    cat <<HELP
usage: bash scripts/$dataset/$(basename "$0") --out DIR [OPTIONS]

$(usage_of_data)
  --out DIR             prepared data and runs; repeat the command to resume
  --paper NAME          hyperparameters: $(papers)
  --attention PLAN      mechanism or plan for all attention blocks, or ENCODER/DECODER/CROSS (default: leap);
                        options after colons, as in luna:luna-length=32
  --predictors LIST     length predictors for synthesis, in quotes, where a decoder block has cosformer: ratio, lookup,
                        conv, oracle (default: the configuration's; conv is trained with the model, the others alongside
                        it)
  --seed N              seed of the training (default: 1)
  --pictures N          spectrograms of the first N test sentences, for all systems (default: 2)
  --train-options TEXT  more options for training, e.g. "--max-update 1000 --fp16"
  --tts-options TEXT    more options for leapformer tts, e.g. "--eos-threshold 0.4"
  --dry-run             print the settings, do nothing
  --help                this text

All systems in --out are rows of OUT/speech/table.md, and all models of OUT/table.md, with their losses on the development
set, so further attentions and seeds with the same --out are added.
If an option is repeated, the last value counts, so all of configs/$dataset/NAME.sh can be overridden.
HELP
}

# usage_of_data: the options that say where the data comes from.
usage_of_data() {
    cat <<HELP
  --root DIR            the data, a folder that holds $root_holds (only to prepare)
  --download            fetch what --root lacks
  --textgrids DIR       Montreal Forced Aligner's TextGrids: phonemes with durations
  --workers N           processes that prepare the data (default: 1)
HELP
}

defaults() {
    root='' out='' attention=leap seed=1 pictures=2 workers=1 textgrids='' download=''
}

finish_options() {
    whole_number --seed "$seed"
    whole_number --pictures "$pictures" 0
    local predictor
    for predictor in $predictors; do
        one_of --predictors "$predictor" "ratio lookup conv oracle"
    done
}

need_data() {
    need_root "--root (the folder that holds $root_holds)"
}

step_prepare() {
    say "preparing $dataset in $data"
    leapformer prepare "$dataset" "$root" --out "$data" --workers "$workers" ${download:+--download} \
        ${textgrids:+--textgrids "$textgrids"}
}

step_train() {
    local run=$out/$(file_name "$attention")-seed$seed plan
    [[ -f $data/config.yaml ]] || fail "$data holds no prepared data; run scripts/$dataset/prepare.sh first"
    plan=$(plan_flags "$attention")
    ! needs_length "$attention" || plan+=" --length-predictor conv"
    say "training $attention, seed $seed, in $run"
    lock_run "$run" "--attention $attention --seed $seed ${train_options[*]}"
    once "$run/model" train "$data" "$run/model" --task text_to_speech --config-yaml config.yaml \
        --train-subset train --valid-subset dev --criterion tacotron2_with_length --no-epoch-checkpoints $plan \
        --seed "$seed" "${train_options[@]}"
}

# step_speak: the test sentences, with every length predictor where the plan needs one.
step_speak() {
    local name run speech predictor
    name=$(file_name "$attention")-seed$seed
    run=$out/$name speech=$out/speech
    need_step "$run/model" train
    if needs_length "$attention"; then
        for predictor in $predictors; do
            speak "$speech/$name-$predictor" --model-overrides "{'length_predictor': '$predictor'}"
        done
    else
        speak "$speech/$name"
    fi
}

# step_losses: those on the development set, with what was spoken before it given.
step_losses() {
    local run=$out/$(file_name "$attention")-seed$seed
    need_step "$run/model" train
    say "losses on the development set with $attention, seed $seed"
    once "$run/dev" forced_losses "$run/model/checkpoint_best.pt" "$run/dev"
    leapformer table "$out" --title "$dataset" --note "Losses on the development set, of frames given those before: \
distances of frames before and behind the post-net, and the cross-entropy of the end."
}

# forced_losses CHECKPOINT OUT
forced_losses() {
    logged "$2/validate.log" leapformer validate "$data" --path "$1" --task text_to_speech --config-yaml config.yaml \
        --valid-subset dev --max-tokens 20000 --num-workers 1 --required-batch-size-multiple 1 --log-format simple &&
        leapformer score "$2/validate.log" --examples <(tail -n +2 "$data/dev.tsv") --checkpoint "$1" \
            --json "$2/scores.json"
}

step_evaluate() {
    step_losses
    step_speak
    step_score
}

# step_score: all systems that have spoken, side by side.
step_score() {
    local speech=$out/speech
    say "scoring all systems in $speech"
    leapformer score-speech "$speech"/*/ --out "$speech" --baselines --pictures "$pictures"
    say "done: $speech/table.md, table.json, spectrogram_*.png; recordings in $speech/SYSTEM/wav"
}

# speak OUT OPTIONS...: the test sentences with this run's model.
speak() {
    local results=$1
    shift
    say "speaking the test sentences in $results"
    leapformer tts --path "$run/model/checkpoint_best.pt" --data "$data" --subset test --out "$results" \
        --plots "$pictures" "$@" "${tts_options[@]}"
}

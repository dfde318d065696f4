# The steps of the recipes for language models: wikitext2, wikitext103. A script names its data set and sources this:
#
#   dataset=wikitext2 paper=small
#   . "$(dirname "$0")/../lm.sh"
#   recipe prepare train evaluate "$@"
. "$(dirname "${BASH_SOURCE[0]}")/text.sh"

value_options="--root --train --valid --test --out --attention --seeds --epochs --jobs --workers"
flag_options="--download --train-on-valid"

usage() {
    cat <<HELP
usage: bash scripts/$dataset/$(basename "$0") --out DIR [OPTIONS]

  --root DIR            the data, a folder that holds wiki.{train,valid,test}.tokens or {train,valid,test}.txt, as they
                        are or with .gz (only to prepare)
  --train FILE, --valid FILE, --test FILE
                        these files instead of those in --root
  --train-on-valid      without a training file: train on the validation text without its last tenth, which validates
  --download            fetch what --root lacks
  --out DIR             prepared data and runs; the same command again goes on where it stopped
  --paper NAME          hyperparameters: $(papers)
  --attention LIST      mechanisms or plans, in quotes; each is trained with each seed (default: the configuration's)
  --seeds LIST          seeds of the trainings, in quotes (default: the configuration's)
  --epochs N            passes over the training data at most (default: the configuration's)
  --jobs N              trainings at the same time, on one core each if more than one (default: the configuration's)
  --workers N           processes that turn text into numbers (default: 1)
  --train-options TEXT  more options for training, e.g. "--max-update 1000 --fp16"
  --eval-options TEXT   more options for fairseq-eval-lm, e.g. "--context-window 400"
  --help                this text

Every run is part of OUT/table.md, so further attentions and seeds with the same --out join it. Of an option given
twice the last value counts, so all of configs/$dataset/NAME.sh can be overridden.
HELP
}

defaults() {
    root='' train='' valid='' test='' out='' workers=1 download='' train_on_valid=''
}

need_data() {
    [[ $download || ($valid && $test) ]] || need_dir "--root (or else --train, --valid and --test)" "$root"
    [[ $root || ! $download ]] || fail "--download needs --root, the folder to put the data into; see --help"
}

step_prepare() {
    say "preparing $dataset in $data"
    leapformer prepare "$dataset" ${root:+"$root"} --out "$data/text" ${train:+--train "$train"} \
        ${valid:+--valid "$valid"} ${test:+--test "$test"} ${train_on_valid:+--train-on-valid} ${download:+--download}
    once "$data/binary" binarise
}

# binarise: what fairseq trains on. It refuses to write over the dictionary of a run that was interrupted.
binarise() {
    rm -f "$data/binary/dict.txt"
    logged "$data/binary/preprocess.log" leapformer preprocess --only-source --trainpref "$data/text/train.txt" \
        --validpref "$data/text/valid.txt" --testpref "$data/text/test.txt" --destdir "$data/binary" \
        --workers "$workers"
}

# each COMMAND: COMMAND ATTENTION SEED for every run, several at the same time with --jobs.
each() {
    local what=$1 name number at_once=$jobs plans numbers pairs=()
    read -ra plans <<<"$attention"
    read -ra numbers <<<"$seeds"
    for name in "${plans[@]}"; do
        [[ $name != */* ]] || fail "--attention $name: a language model has one attention block; give one plan for it"
        for number in "${numbers[@]}"; do
            whole_number --seeds "$number"
            pairs+=("$name $number")
        done
    done
    ((${#pairs[@]})) || fail "--attention and --seeds name no run; give at least one of each"
    whole_number --jobs "$jobs"
    ((at_once <= ${#pairs[@]})) || at_once=${#pairs[@]}
    if ((at_once == 1)); then
        share_of job1
    else
        OMP_NUM_THREADS=1 together share_of $(seq -f "job%.0f" "$at_once")
    fi
}

# share_of JOB: every at_once-th of the runs in `pairs`.
share_of() {
    local n
    for ((n = ${1#job} - 1; n < ${#pairs[@]}; n += at_once)); do
        "$what" "${pairs[n]% *}" "${pairs[n]#* }"
    done
}

# run_folder ATTENTION SEED: where this run is.
run_folder() {
    echo "$out/$(file_name "$1")-seed$2"
}

step_train() {
    need_step "$data/binary" prepare
    each train_run
}

train_run() {
    local run
    run=$(run_folder "$1" "$2")
    say "training $1, seed $2, in $run"
    claim "$run" "--attention $1 --seed $2 ${train_on_valid:+--train-on-valid }${train_options[*]}"
    once "$run/model" train_text "$run/model" --task language_modeling --decoder-self-attention "$1" --seed "$2" \
        --no-epoch-checkpoints "${train_options[@]}"
}

step_evaluate() {
    each evaluate_run
    step_table
}

evaluate_run() {
    local run
    run=$(run_folder "$1" "$2")
    need_step "$run/model" train
    say "perplexity of the test text with $1, seed $2"
    claim "$run/test" "${eval_options[*]}"
    once "$run/test" perplexity "$run/model/checkpoint_best.pt" "$run/test"
}

# perplexity CHECKPOINT OUT: of the test text.
perplexity() {
    logged "$2/eval.log" leapformer eval-lm "$data/binary" --path "$1" --gen-subset test "${eval_options[@]}" &&
        leapformer score "$2/eval.log" --text "$data/text/test.txt" --checkpoint "$1" --json "$2/scores.json"
}

step_table() {
    local rows expected notes=("Words of the test text, line ends included; of each run the checkpoint with the lowest \
validation loss.")
    [[ ! $train_on_valid ]] || notes+=("There was no training text: the models were trained on the validation text \
without its last tenth and validated on that tenth. Words that only the test text has count as <unk>. So these \
perplexities cannot be compared with published ones.")
    read -ra rows <<<"$attention"
    read -ra expected <<<"${expect:+--expect $expect}"
    leapformer table "$out" --title "$dataset" --rows "${rows[@]}" "${expected[@]}" \
        --note "${notes[0]}" ${notes[1]:+--note "${notes[1]}"}
    say "done: $out/table.md, $out/table.json; details in RUN/model and RUN/test"
}

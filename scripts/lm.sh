# The steps of the recipes for language models: wikitext2, wikitext103. A script sets its data set and sources this:
#
#   dataset=wikitext2 paper=small
#   . "$(dirname "$0")/../lm.sh"
#   recipe prepare train evaluate "$@"
. "$(dirname "${BASH_SOURCE[0]}")/runs.sh"

value_options="--root --train --valid --test --contexts $runs_value_options"
contexts='' # of the configuration
flag_options="--download --train-on-valid"
task_options=(--task language_modeling --decoder-self-attention)

usage() {
    cat <<HELP
usage: bash scripts/$dataset/$(basename "$0") --out DIR [OPTIONS]

  --root DIR            the data, a folder that holds wiki.{train,valid,test}.tokens or {train,valid,test}.txt, plain
                        or with .gz (only to prepare)
  --train FILE, --valid FILE, --test FILE
                        use these files instead of those in --root
  --train-on-valid      without a training file: train on the validation text except its last tenth, and validate
                        on that
  --download            fetch what --root lacks
  --contexts LIST       evaluate with so many words before each segment, in quotes, each a row (default: the
                        configuration's, or --context-window of its evaluation)
$(usage_of_runs 'fairseq-eval-lm, e.g. "--context-window 400"')
HELP
}

defaults() {
    root='' train='' valid='' test='' out='' workers=1 download='' train_on_valid=''
}

eval "lm_$(declare -f finish_options)" # of text.sh, and
finish_options() {
    local context
    lm_finish_options
    for context in $contexts; do
        whole_number --contexts "$context" 0
    done
}

need_data() {
    [[ $download || ($valid && $test) ]] || need_dir "--root (or else --train, --valid and --test)" "$root"
    [[ $root || ! $download ]] || fail "--download needs --root, the folder to put the data into; see --help"
}

step_prepare() {
    say "preparing $dataset in $data"
    leapformer prepare "$dataset" ${root:+"$root"} --out "$data/text" ${train:+--train "$train"} \
        ${valid:+--valid "$valid"} ${test:+--test "$test"} ${train_on_valid:+--train-on-valid} ${download:+--download}
    once "$data/binary" binarise "$data/binary" --trainpref "$data/text/train.txt" \
        --validpref "$data/text/valid.txt" --testpref "$data/text/test.txt"
}

begin_training() {
    marks=${train_on_valid:+--train-on-valid}
}

# evaluate CHECKPOINT OUT: perplexity of the test text.
evaluate() {
    logged "$2/eval.log" leapformer eval-lm "$data/binary" --path "$1" --gen-subset test "${eval_options[@]}" &&
        leapformer score "$2/eval.log" --text "$data/text/test.txt" --checkpoint "$1" --json "$2/scores.json"
}

evaluate_run() {
    local run context
    run=$(run_folder "$1" "$2")
    need_step "$run/model" train
    [[ $contexts ]] || evaluate_with "$run" "$1" "$2"
    for context in $contexts; do
        whole_number --contexts "$context" 0
        evaluate_with "$run" "$1" "$2" "$context"
    done
}

# evaluate_with RUN ATTENTION SEED [CONTEXT]
evaluate_with() {
    local eval_options=("${eval_options[@]}" ${4:+--context-window "$4"}) results=$1/test${4:+-context$4}
    say "perplexity of the test text with $2, seed $3${4:+, context $4}"
    lock_run "$results" "${eval_options[*]}"
    once "$results" evaluate "$1/model/checkpoint_best.pt" "$results"
}

step_table() {
    local notes=("Words of the test text, line ends included; of each run the checkpoint with the lowest validation \
loss.")
    [[ ! $train_on_valid ]] || notes+=("There was no training text: the models were trained on the validation text \
without its last tenth and validated on that tenth. Words that only the test text has count as <unk>. So these \
perplexities cannot be compared with published ones.")
    table "${notes[@]}"
}

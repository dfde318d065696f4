# The steps of the recipe for GLUE: masked language models fine-tuned to classify. Its scripts source this:
#
#   dataset=glue paper=small
#   . "$(dirname "$0")/../glue.sh"
#   recipe prepare train evaluate "$@"
#
# A configuration also sets task_settings[TASK]: training options specific to a task.
. "$(dirname "${BASH_SOURCE[0]}")/runs.sh"

value_options="--root --tasks --pretrained --pretrained-seed --vocabulary $runs_value_options"
flag_options="--download"

usage() {
    cat <<HELP
usage: bash scripts/$dataset/$(basename "$0") --out DIR [OPTIONS]

  --root DIR            the data, a folder that holds MNLI/train.tsv and so on, plain or with .gz (only to prepare)
  --download            fetch what --root lacks
  --tasks LIST          of MNLI, QNLI, QQP and SST-2, in quotes (default: the configuration's)
$(usage_of_fine_tuning)
HELP
}

# usage_of_fine_tuning: --help for the options of all recipes that begin with a pre-trained model.
usage_of_fine_tuning() {
    cat <<HELP
  --pretrained PATH     the --out folder of scripts/mlm, with a model for each attention, or one checkpoint for all of
                        them
  --pretrained-seed N   the seed of the models in that folder (default: 1)
  --vocabulary DIR      the vocabulary of the models (only to prepare; default: PATH/data/text)
$(usage_of_runs 'fairseq-validate, e.g. "--batch-size 8"')
HELP
}

defaults() {
    root='' pretrained='' pretrained_seed=1 vocabulary='' out='' workers=1 download=''
}

eval "glue_$(declare -f finish_options)" # of text.sh, and
finish_options() {
    local task
    glue_finish_options
    for task in $tasks; do
        one_of --tasks "$task" "MNLI QNLI QQP SST-2"
    done
}

need_data() {
    need_root --root
    need_dir "--vocabulary (or else --pretrained, the folder that holds it)" "$(vocabulary_folder)"
}

vocabulary_folder() {
    echo "${vocabulary:-${pretrained:+$pretrained/data/text}}"
}

step_prepare() {
    local task
    for task in $tasks; do
        say "preparing $task in $data/$task"
        leapformer prepare glue "$task" "$root" --out "$data/$task/text" --vocabulary "$(vocabulary_folder)" \
            ${download:+--download}
        once "$data/$task/binary" binarise_task "$data/$task/text" "$data/$task/binary"
    done
}

# binarise_task TEXT BINARY: sentences, second sentences of pairs, and labels, each in its own folder.
binarise_task() {
    local text=$1 binary=$2 part dictionary files
    for part in input0 input1 label; do
        [[ -d $text/$part ]] || continue
        dictionary=$text/dict.txt
        [[ $part != label ]] || dictionary=$text/label/dict.txt
        files=(--trainpref "$text/$part/train" --validpref "$(files_of "$text/$part/valid")")
        [[ ! -f $text/$part/test ]] || files+=(--testpref "$(files_of "$text/$part/test")")
        binarise "$binary/$part" --srcdict "$dictionary" "${files[@]}" || return
    done
}

# files_of FILE: as fairseq wants to have it, with the second one of MNLI, the mismatched, behind a comma.
files_of() {
    echo "$1$([[ ! -f ${1}1 ]] || echo ",${1}1")"
}

step_train() {
    [[ $pretrained ]] || fail "no --pretrained given; see --help"
    each train_run
}

# train_run ATTENTION SEED TASK. Examples longer than the model's positions are truncated; fairseq would skip them,
# also in validation.
train_run() {
    local data=$data/$3 run checkpoint settings
    need_step "$data/binary" prepare
    run=$(run_folder "$@")
    checkpoint=$(pretrained_model "$1") || exit
    read -ra settings <<<"${task_settings[$3]:-}"
    settings+=("${train_options[@]}") # those from the command line last, where they count
    say "training $1, seed $2, on $3 in $run"
    lock_run "$run" "--attention $1 --seed $2 --pretrained $pretrained --pretrained-seed $pretrained_seed ${settings[*]}"
    once "$run/model" train "$data/binary" "$run/model" --task sentence_prediction --criterion sentence_prediction \
        --num-classes "$(wc -l <"$data/text/label/dict.txt")" --init-token 0 --separator-token 2 \
        --shorten-method truncate --encoder-self-attention "$(plan_of "$1")" \
        --finetune-from-model "$checkpoint" --seed "$2" --best-checkpoint-metric accuracy --maximize-best-checkpoint-metric --no-epoch-checkpoints "${settings[@]}" \
        $(options_of "$1")
}

# pretrained_model ATTENTION: the checkpoint that its fine-tuning starts from.
pretrained_model() {
    local found=$pretrained
    [[ ! -d $found ]] || found=$found/$(file_name "$1")-seed$pretrained_seed/model/checkpoint_best.pt
    [[ -f $found ]] || fail "--pretrained $pretrained: there is no $found; train it with scripts/mlm first"
    echo "$found"
}

evaluate_run() {
    local data=$data/$3 run set scored
    run=$(run_folder "$@")
    need_step "$run/model" train
    say "accuracy on the development set of $3 with $1, seed $2"
    for set in valid valid1; do
        [[ -f $data/text/label/$set ]] || continue
        scored=$run/$3
        [[ $set == valid ]] || scored+=-mismatched
        lock_run "$scored" "${eval_options[*]}"
        once "$scored" evaluate "$run/model/checkpoint_best.pt" "$scored" "$set"
    done
}

# evaluate CHECKPOINT OUT SET: accuracy on the development set.
evaluate() {
    logged "$2/validate.log" leapformer validate "$data/binary" --path "$1" --task sentence_prediction \
        --criterion sentence_prediction --valid-subset "$3" --num-workers 1 --required-batch-size-multiple 1 \
        --log-format simple "${eval_options[@]}" &&
        leapformer score "$2/validate.log" --examples "$data/text/label/$3" --checkpoint "$1" --json "$2/scores.json"
}

step_table() {
    table "Accuracy on the development sets in per cent; of each run the checkpoint that is best there, as is usual for \
GLUE, whose test sets have no public labels."
}

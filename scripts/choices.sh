# The steps of the recipes race and csqa: masked language models fine-tuned to choose answers. Their scripts source this:
#
#   dataset=race paper=luna root_holds="{train,dev,test}/{middle,high}/*.txt" choices=4
#   . "$(dirname "$0")/../choices.sh"
#   recipe prepare train evaluate "$@"
. "$(dirname "${BASH_SOURCE[0]}")/glue.sh"

value_options="--root --pretrained --pretrained-seed --vocabulary $runs_value_options"
flag_options=''

usage() {
    cat <<HELP
usage: bash scripts/$dataset/$(basename "$0") --out DIR [OPTIONS]

  --root DIR            the data, a folder that holds $root_holds (only to prepare)
$(usage_of_fine_tuning)
HELP
}

step_prepare() {
    say "preparing $dataset in $data/text"
    leapformer prepare "$dataset" "$root" --out "$data/text" --vocabulary "$(vocabulary_folder)"
    once "$data/binary" binarise_choices "$data/text" "$data/binary"
}

# binarise_choices TEXT BINARY: what choices share, each choice, and the places of the right ones.
binarise_choices() {
    local text=$1 binary=$2 place files
    for ((place = 0; place <= choices; place++)); do
        files=(--trainpref "$text/input$place/train" --validpref "$text/input$place/valid")
        [[ ! -f $text/input$place/test ]] || files+=(--testpref "$text/input$place/test")
        binarise "$binary/input$place" --srcdict "$text/dict.txt" "${files[@]}" || return
    done
    cp -r "$text/label" "$binary"
}

ranking_options=(--task sentence_ranking --criterion sentence_ranking)

train_run() {
    local run checkpoint
    need_step "$data/binary" prepare
    run=$(run_folder "$@")
    checkpoint=$(pretrained_model "$1") || exit
    say "training $1, seed $2, in $run"
    lock_run "$run" "--attention $1 --seed $2 --pretrained $pretrained --pretrained-seed $pretrained_seed ${train_options[*]}"
    once "$run/model" train "$data/binary" "$run/model" "${ranking_options[@]}" --num-classes "$choices" \
        --init-token 0 --separator-token 2 --shorten-method truncate --encoder-self-attention "$(plan_of "$1")" \
        --finetune-from-model "$checkpoint" --seed "$2" --best-checkpoint-metric accuracy \
        --maximize-best-checkpoint-metric --no-epoch-checkpoints "${train_options[@]}" $(options_of "$1")
}

evaluate_run() {
    local run set
    run=$(run_folder "$@")
    need_step "$run/model" train
    for set in valid test; do
        [[ -f $data/text/label/$set.label ]] || continue
        say "accuracy on the $set set with $1, seed $2"
        lock_run "$run/$set" "${eval_options[*]}"
        once "$run/$set" evaluate "$run/model/checkpoint_best.pt" "$run/$set" "$set"
    done
}

# evaluate CHECKPOINT OUT SET
evaluate() {
    logged "$2/validate.log" leapformer validate "$data/binary" --path "$1" "${ranking_options[@]}" \
        --valid-subset "$3" --num-workers 1 --required-batch-size-multiple 1 --log-format simple "${eval_options[@]}" &&
        leapformer score "$2/validate.log" --examples "$data/text/label/$3.label" --checkpoint "$1" \
            --json "$2/scores.json"
}

step_table() {
    table "Accuracy in per cent; of each run the checkpoint that is best on the development set (valid)."
}

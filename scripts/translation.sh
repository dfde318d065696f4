# The steps of the recipes for text translation: multi30k, iwslt14_deen, wmt14_ende, iwslt14_esen_doc. A script names
# its data set and sources this:
#
#   dataset=multi30k paper=small root_holds="train.en, train.de, ..."
#   . "$(dirname "$0")/../translation.sh"
#   recipe prepare train evaluate "$@"
#
# A data set whose name ends with _doc consists of documents and is translated in windows of sentences.
. "$(dirname "${BASH_SOURCE[0]}")/text.sh"

value_options="--root --out --pair --attention --seed --epochs --vocab-size --average --set --workers"
flag_options="--download"
documents='' window=''
attention=leap set=test
table_options=()

if [[ $dataset == *_doc ]]; then
    documents=1
    value_options+=" --window"
    flag_options=""
fi

usage() {
    cat <<HELP
usage: bash scripts/$dataset/$(basename "$0") --out DIR [OPTIONS]

  --root DIR            the data, a folder that holds $root_holds (only to prepare)
$(usage_of_data)
  --out DIR             prepared data and runs; repeat the command to resume
  --paper NAME          hyperparameters: $(papers)
  --attention PLAN      mechanism or plan for all attention blocks, or ENCODER/DECODER/CROSS (default: the
                        configuration's, otherwise leap); options after colons, as in luna:luna-length=32
  --pair SOURCE-TARGET  languages (default: the configuration's)
  --seed N              seed of the training (default: 1)
  --epochs N            maximum passes over the training data (default: the configuration's)
  --average N           translate with the average of the last N epochs; 0: with the best epoch by validation loss
                        (default: the configuration's)
  --set NAME            what to translate: test, or valid, the development set (default: test)
  --vocab-size N        subwords for both languages together (default: the configuration's)
  --workers N           processes that binarise the text (default: 1)
  --train-options TEXT  more options for training, e.g. "--max-update 1000 --fp16"
  --eval-options TEXT   more options for fairseq-generate, e.g. "--beam 1"
  --dry-run             print the settings, do nothing
  --help                this text

Every run is a row of OUT/table.md, so further attentions and seeds with the same --out are added to it. If an
option is repeated, the last value counts, so all of configs/$dataset/NAME.sh can be overridden.
HELP
}

usage_of_data() {
    if [[ $documents ]]; then
        cat <<HELP
  --window N            sentences of a document translated together, of which only the last is scored; in plain
                        files an empty line ends a document (only to prepare; default: the configuration's)
HELP
    else
        echo "  --download            fetch what --root lacks"
    fi
}

defaults() {
    root='' out='' seed=1 workers=1 download=''
}

eval "text_$(declare -f finish_options)" # of text.sh, and
finish_options() {
    text_finish_options
    one_of --set "$set" "test valid"
    [[ ! $window ]] || whole_number --window "$window"
}

need_data() {
    need_root "--root (the folder that holds $root_holds)"
}

step_prepare() {
    say "preparing $dataset in $data"
    leapformer prepare "${dataset%%_*}${documents:+-documents}" "$root" --out "$data/text" --pair "$pair" \
        --vocab-size "$vocab_size" ${window:+--window "$window"} ${download:+--download}
    once "$data/binary" binarise
}

# binarise: the data that fairseq trains on, with one dictionary for both languages, so that they can share embeddings.
binarise() {
    logged "$data/binary/preprocess.log" leapformer preprocess --source-lang "${pair%-*}" --target-lang "${pair#*-}" \
        --trainpref "$data/text/train" --validpref "$data/text/valid" --testpref "$data/text/test" \
        --destdir "$data/binary" --joined-dictionary --srcdict "$data/text/spm.txt" --workers "$workers"
}

# run_folder: the folder of the run with this attention and seed.
run_folder() {
    echo "${runs:-$out}/$(file_name "$attention")-seed$seed"
}

# run_options: what identifies that run.
run_options() {
    echo "--attention $attention --seed $seed ${train_options[*]}"
}

step_train() {
    local run keep=(--no-epoch-checkpoints)
    whole_number --seed "$seed"
    whole_number --average "$average" 0
    need_step "$data/binary" prepare
    run=$(run_folder)
    ((average == 0)) || keep=(--keep-last-epochs "$average")
    say "training $attention, seed $seed, in $run"
    lock_run "$run" "$(run_options)"
    once "$run/model" train "$data/binary" "$run/model" --task translation --source-lang "${pair%-*}" \
        --target-lang "${pair#*-}" --seed "$seed" "${keep[@]}" "${train_options[@]}" $(plan_flags "$attention")
}

step_evaluate() {
    local run checkpoint
    run=$(run_folder)
    need_step "$run/model" train
    checkpoint=$run/model/checkpoint_best.pt
    if ((average)); then
        checkpoint=$run/model/average$average.pt
        [[ -f $checkpoint ]] || leapformer average --inputs "$run/model" --last "$average" --output "$checkpoint"
    fi
    say "translating the $set set with $attention, seed $seed"
    lock_run "$run/$set" "--average $average ${eval_options[*]}"
    once "$run/$set" translate "$checkpoint" "$run/$set"
    step_table
}

# translate CHECKPOINT OUT: the set, then BLEU and chrF on detokenised text.
translate() {
    local translations=$2/generate-$set.txt
    logged "$2/generate.log" leapformer generate "$data/binary" --task translation --source-lang "${pair%-*}" \
        --target-lang "${pair#*-}" --gen-subset "$set" --path "$1" --max-tokens 8000 --num-workers 1 \
        --required-batch-size-multiple 1 --bpe sentencepiece --sentencepiece-model "$data/text/spm.model" \
        --results-path "$2" "${eval_options[@]}" || return
    if [[ $documents ]]; then
        last_sentences <"$translations" >"$2/sentences-$set.txt"
        translations=$2/sentences-$set.txt
    fi
    leapformer score "$translations" --references "$data/text/raw/$set.${pair#*-}" --checkpoint "$1" \
        --json "$2/scores.json"
}

# last_sentences: what follows the last separator in the translation of every window in fairseq-generate's output.
last_sentences() {
    sed -E $'s/^(D-[0-9]+\t[^\t]*\t).*<sep> ?/\\1/'
}

step_table() {
    local evaluated="the checkpoint with the lowest validation loss of each run"
    ((average == 0)) || evaluated="the average of the last $average epochs of each run"
    [[ ! $documents ]] || evaluated+=", in windows of sentences, of which the last one counts"
    leapformer table "${runs:-$out}" --title "$dataset, $pair" "${table_options[@]}" \
        --note "Detokenised text, one reference; translated with $evaluated."
    say "done: ${runs:-$out}/table.md, table.json, table.png; details in RUN/model and RUN/$set"
}

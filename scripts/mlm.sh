# The steps of the recipe for masked language models, on any text. Its scripts source this:
#
#   dataset=mlm paper=small
#   . "$(dirname "$0")/../mlm.sh"
#   recipe prepare train evaluate "$@"
. "$(dirname "${BASH_SOURCE[0]}")/runs.sh"

value_options="--root --vocab-size --vocabulary --init $runs_value_options"
flag_options=""
task_options=(--task masked_lm --criterion masked_lm --encoder-self-attention)

usage() {
    cat <<HELP
usage: bash scripts/$dataset/$(basename "$0") --out DIR [OPTIONS]

  --root DIR            the data, a folder that holds {train,valid,test}.txt or wiki.{train,valid,test}.tokens, plain
                        or with .gz: one sentence per line, an empty line between documents (only to prepare)
  --vocab-size N        number of subwords, learned from the training text (default: the configuration's)
  --vocabulary DIR      subwords to use instead: OUT/data/text of another run, or a folder with RoBERTa's
                        encoder.json, vocab.bpe and dict.txt
  --init CHECKPOINT     initialise with this model, of any attention: a RoBERTa of fairseq, or
                        OUT/ATTENTION-seedN/model/checkpoint_best.pt; requires the vocabulary that it was trained with
$(usage_of_runs 'fairseq-validate, e.g. "--mask-prob 0.2"')
HELP
}

defaults() {
    root='' vocabulary='' init='' out='' workers=1
}

need_data() {
    need_dir --root "$root"
}

step_prepare() {
    whole_number --vocab-size "$vocab_size"
    say "preparing the text in $data"
    leapformer prepare mlm "$root" --out "$data/text" --vocab-size "$vocab_size" \
        ${vocabulary:+--vocabulary "$vocabulary"}
    once "$data/binary" binarise "$data/binary" --srcdict "$data/text/dict.txt" --trainpref "$data/text/train.txt" \
        --validpref "$data/text/valid.txt" --testpref "$data/text/test.txt"
}

begin_training() {
    [[ ! $init || -f $init ]] || fail "--init $init: no such checkpoint; train it first or check the path"
    train_options=(${init:+--finetune-from-model "$init"} "${train_options[@]}")
}

# evaluate CHECKPOINT OUT: perplexity of the test text's masked subwords. The text is cut into full blocks, so that
# no line is too long, and the seed determines what is masked.
evaluate() {
    logged "$2/validate.log" leapformer validate "$data/binary" --path "$1" --task masked_lm --valid-subset test \
        --sample-break-mode none --seed 1 --num-workers 1 --required-batch-size-multiple 1 --log-format simple \
        "${eval_options[@]}" &&
        leapformer score "$2/validate.log" --examples "$data/text/test.txt" --checkpoint "$1" --json "$2/scores.json"
}

step_table() {
    table "Perplexity of the masked subwords of the test text, the same ones for every model; of each run the \
checkpoint with the lowest validation loss."
}

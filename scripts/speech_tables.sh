# The tables of the LeaPformer paper on simultaneous translation, one command each. A script sets its data set and the
# tables that have it, and sources this:
#
#   dataset=mustc root_holds="en-de/data" sets="tst-COMMON tst-HE dev" tables="5 6 10"
#   . "$(dirname "$0")/../speech_tables.sh"
#   recipe prepare tables "$@"
. "$(dirname "${BASH_SOURCE[0]}")/speech.sh"

value_options+=" --table --plans --longest"

usage() {
    cat <<HELP
usage: bash scripts/$dataset/tables.sh --table N --out DIR [OPTIONS]

Trains and evaluates all plans of a table of the LeaPformer paper (arXiv:2405.13046), one after the other, and writes
OUT/report.md after each. Plans of other tables with the same --out are not trained again; repeat the command to resume.

  --table N           $(table_texts)
  --plans LIST        only these, in quotes
  --longest N         table 10: so many of the longest utterances of the development set (default: 100; the paper does
                      not say which it took)
  --root, --paper, --k, --sets, --vocab-size, --workers, --average, --asr-options, --st-options, --eval-options
                      as in scripts/$dataset/run.sh
HELP
}

table_texts() {
    local number texts=(
        [5]="perplexity with cosFormer and LeaPformer in decoder self-attention (cosFormer knows true lengths)"
        [6]="BLEU, AL and perplexity of softmax, and of LeaPformer and ReLU in each block and in all"
        [7]="BLEU, AL and perplexity of softmax, and of LeaPformer in each block and in all"
        [10]="computation of softmax, and of LeaPformer in each block, on long utterances, with at most 10
                          tokens after the end of the source"
    )
    for number in $tables; do
        printf '%-4s%s\n' "$number" "${texts[number]}"
    done | sed '2,$s/^\([0-9]\)/                      \1/'
}

# plans_of TABLE
plans_of() {
    local leap="leap/softmax/softmax softmax/leap/softmax softmax/softmax/leap"
    case $1 in
        5) echo "softmax/cosformer/softmax:cosformer-length=0 softmax/leap/softmax" ;;
        6) echo "softmax $leap leap ${leap//leap/relu} relu" ;;
        7) echo "softmax $leap leap" ;;
        10) echo "softmax softmax/leap/softmax softmax/softmax/leap leap/softmax/softmax" ;;
    esac
}

defaults() {
    root='' out='' workers=1 sets=${sets%% *} offline='' table='' plans='' longest=100
}

finish_options() {
    whole_number --average "$average"
    whole_number --longest "$longest"
    [[ $table && " $tables " == *" $table "* ]] || fail "--table '$table': give one of $tables; see --help"
    [[ $table != 10 ]] || sets=dev-long eval_options+=(--max-after-read 10)
    plans=${plans:-$(plans_of "$table")}
}

# long_dev: the longest utterances of the development set, as lists for simulation and as a manifest.
long_dev() {
    local part
    for part in source target; do
        paste <(cut -f3 "$data/dev_st.tsv" | tail -n +2) "$data/dev.$part" | sort -snr | head -n "$longest" |
            cut -f2- >"$data/dev-long.$part"
    done
    { head -n 1 "$data/dev_st.tsv" && tail -n +2 "$data/dev_st.tsv" | sort -snrt $'\t' -k3,3 | head -n "$longest"; } \
        >"$data/dev-long_st.tsv"
}

step_tables() {
    [[ $table != 10 ]] || long_dev
    for attention in $plans; do
        step_train
        step_evaluate
    done
}

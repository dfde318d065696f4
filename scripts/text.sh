# What the recipes for text share; translation.sh and lm.sh source it and say which options and steps there are.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# recipe STEP... OPTIONS...: read the options, set up the environment, and run the steps: prepare, train, evaluate.
recipe() {
    local steps=()
    while (($#)) && [[ $1 != -* ]]; do
        steps+=("$1")
        shift
    done
    read_options "$@"
    [[ ${steps[0]} != prepare ]] || need_data
    activate
    mkdir -p "$out"
    out=$(cd "$out" && pwd)
    data=$out/data
    for step in "${steps[@]}"; do
        "step_$step"
    done
}

# read_options OPTIONS...: into the variables of the same names; value_options and flag_options list what there is.
read_options() {
    local more arguments=("$@")
    while (($#)); do
        [[ $1 != --help && $1 != -h ]] || { usage && exit; }
        [[ $1 != --paper ]] || paper=${2:?--paper needs a name}
        shift
    done
    [[ -f $ROOT/configs/$dataset/$paper.sh ]] || fail "--paper $paper: there is no configs/$dataset/$paper.sh"
    . "$ROOT/configs/$dataset/$paper.sh"
    defaults
    set -- "${arguments[@]}"
    while (($#)); do
        more=${1#--}
        if [[ " $flag_options " == *" $1 "* ]]; then
            printf -v "${more//-/_}" %s 1
            shift
            continue
        fi
        [[ " $value_options --paper --train-options --eval-options " == *" $1 "* ]] ||
            fail "unknown option $1; see --help"
        (($# > 1)) || fail "$1 needs a value; see --help"
        case $1 in
            --paper) ;;
            --train-options) read -ra more <<<"$2" && train_options+=("${more[@]}") ;;
            --eval-options) read -ra more <<<"$2" && eval_options+=("${more[@]}") ;;
            *) printf -v "${more//-/_}" %s "$2" ;;
        esac
        shift 2
    done
    [[ $out ]] || fail "no --out given; see --help"
    whole_number --epochs "$epochs"
    train_options=(--max-epoch "$epochs" "${train_options[@]}")
}

# papers: the configurations of this data set.
papers() {
    local names
    names=$(cd "$ROOT/configs/$dataset" && echo *.sh)
    echo "${names//.sh/} (default: $paper)"
}

# whole_number OPTION VALUE [LEAST]: stop with a clear message unless VALUE is a number from LEAST, or else from 1.
whole_number() {
    [[ $2 =~ ^[0-9]+$ && $2 -ge ${3:-1} ]] || fail "$1 $2: give a whole number from ${3:-1}"
}

# logged FILE COMMAND...: all output of COMMAND goes to FILE; of a failure its end is shown.
logged() {
    local file=$1
    shift
    "$@" >>"$file" 2>&1 || {
        tail -n 3 "$file"
        return 1
    }
}

# brief_text: of fairseq's training log only the losses and errors, a short line each.
brief_text() {
    local loss='loss ([0-9.]+) .*\| ppl ([0-9.e+]+) .*num_updates ([0-9]+)'
    sed -unE \
        -e 's/.*train_inner[ :|]+epoch.* loss=([0-9.]+),.* num_updates=([0-9]+),.*/  update \2: loss \1/p' \
        -e "s/.*valid on .*\| $loss.*/  update \\3: valid loss \\1, perplexity \\2/p" \
        -e '/^leapformer: |^[A-Za-z.]*(Error|Interrupt)\b/p'
}

# train_text SAVE OPTIONS...: train on the binary data; the whole output goes to SAVE/train.log. It goes on from the
# last checkpoint if there is one.
train_text() {
    local save=$1
    shift
    leapformer train "$data/binary" --save-dir "$save" --num-workers 1 --required-batch-size-multiple 1 \
        --skip-invalid-size-inputs-valid-test --log-format simple --no-progress-bar "$@" 2>&1 |
        tee -a "$save/train.log" | brief_text
}

# need_step DIR STEP: stop unless the step that leaves DIR/done is finished.
need_step() {
    [[ -f $1/done ]] || fail "$1 is not finished; run scripts/$dataset/$2.sh first"
}

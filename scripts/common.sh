# Steps shared by the quickstart and the recipes. Source it from a script that has run `set -euo pipefail`.
#
# A finished step leaves a file DIR/done and is skipped when the script runs again; an interrupted training run
# resumes from its last checkpoint.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(nproc)}
# Idle threads spin only briefly. Spinning longer, the default, makes training many times slower as soon as anything else
# runs on these cores; sleeping at once also makes it slower.
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-20000}
# glibc keeps freed memory, in pages of 2 MiB, instead of returning it and getting it back zeroed at every update: a CPU
# trains a quarter faster.
export MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-8589934592} MALLOC_TOP_PAD_=${MALLOC_TOP_PAD_:-268435456}
export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.mmap_max=0:glibc.malloc.hugetlb=1}

fail() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

say() {
    echo "== [$((SECONDS / 60))m$((SECONDS % 60))s] $*"
}

# activate: create or reuse .venv and put its commands first; LEAPFORMER_VENV names another environment to use as it is.
activate() {
    if [[ -n ${LEAPFORMER_VENV:-} ]]; then
        export PATH="$LEAPFORMER_VENV/bin:$PATH"
        return
    fi
    bash "$ROOT/scripts/setup.sh" || fail "setting up .venv failed (see the messages above)"
    export PATH="$ROOT/.venv/bin:$PATH"
}

# pretend: from here on, commands are printed instead of run, for --dry-run.
pretend() {
    activate() { :; }
    bash() { echo "bash $*"; }
    leapformer() { echo "leapformer $*"; }
}

# need_dir NAME PATH: stop with a clear message unless PATH is a folder.
need_dir() {
    [[ -n ${2:-} ]] || fail "no $1 given; see --help"
    [[ -d $2 ]] || fail "$1 $2 is not a folder; check the path"
}

# once DIR COMMAND...: run COMMAND unless it finished before; its output is also written to DIR/log.
once() {
    local dir=$1
    shift
    if [[ -f $dir/done ]]; then
        say "$dir is finished, skipped"
        return
    fi
    mkdir -p "$dir"
    "$@" 2>&1 | tee -a "$dir/log" || fail "failed: $dir (the output is in $dir/*log)"
    touch "$dir/done"
}

# together COMMAND ARGUMENT...: run COMMAND with each ARGUMENT in parallel, output lines prefixed with the ARGUMENT;
# stops all when one fails or on Ctrl-C.
together() {
    local command=$1 argument jobs=() job
    shift
    set -m # each job in its own process group, so that it can be stopped with its children
    for argument in "$@"; do
        { "$command" "$argument" 2>&1 | sed -u "s|^|$argument |"; } &
        jobs+=($!)
    done
    set +m
    trap 'kill -- "${jobs[@]/#/-}" 2>/dev/null; fail "interrupted; the same command goes on from here"' INT TERM
    for job in "${jobs[@]}"; do
        wait -n || {
            kill -- "${jobs[@]/#/-}" 2>/dev/null
            exit 1
        }
    done
    trap - INT TERM
}

# An ATTENTION is one mechanism or plan for all blocks, or ENCODER/DECODER/CROSS; options of its mechanisms may follow, as
# in luna:luna-length=32 or softmax/abc-mlp/abc-mlp:abc-slots=32/8/32.

# plan_of ATTENTION: without the options.
plan_of() {
    echo "${1%%:*}"
}

# options_of ATTENTION: its options as flags.
options_of() {
    local option options=()
    IFS=: read -ra options <<<"$1"
    for option in "${options[@]:1}"; do
        echo -n " --${option/=/ }"
    done
}

# encoder_of ATTENTION: the plan of its encoder, with the options.
encoder_of() {
    local plan=${1%%:*}
    echo "${plan%%/*}${1:${#plan}}"
}

# plan_flags ATTENTION: the plans of the three blocks, and the options.
plan_flags() {
    local encoder decoder cross
    IFS=/ read -r encoder decoder cross <<<"$(plan_of "$1")"
    decoder=${decoder:-$encoder}
    cross=${cross:-$decoder}
    echo "--encoder-self-attention $encoder --decoder-self-attention $decoder --decoder-cross-attention $cross$(options_of "$1")"
}

# needs_length PLAN: whether a decoder block has a mechanism that needs the target's length.
needs_length() {
    local encoder decoder
    IFS=/ read -r encoder decoder <<<"$(plan_of "$1")"
    [[ ${decoder:-$encoder} == *cosformer* ]]
}

# train DATA SAVE OPTIONS...: leapformer train with the options common to all recipes; the full output goes to
# SAVE/train.log. It resumes from the last checkpoint if there is one.
train() {
    local data=$1 save=$2
    shift 2
    leapformer train "$data" --save-dir "$save" --num-workers 1 --required-batch-size-multiple 1 \
        --skip-invalid-size-inputs-valid-test --log-format simple --no-progress-bar "$@" 2>&1 |
        tee -a "$save/train.log" | brief
}

# logged FILE COMMAND...: write all output of COMMAND to FILE; on failure, print the end of it.
logged() {
    local file=$1
    shift
    "$@" >>"$file" 2>&1 || {
        tail -n 3 "$file"
        return 1
    }
}

# brief: filter fairseq's training log to losses, accuracies and errors, one short line each.
brief() {
    local inner='.*train_inner[ :|]+epoch.* loss=([0-9.]+),' valid='.*valid on .*\| loss ([0-9.]+) ' n='num_updates[ =]([0-9]+)'
    sed -unE \
        -e "s/$inner l1_loss=([0-9.]+),.* $n,.*/  update \\3: loss \\1, L1 \\2/p" \
        -e "s/$inner.* $n,.*/  update \\2: loss \\1/p" \
        -e "s/$valid\| l1_loss ([0-9.]+) .*$n.*/  update \\3: valid loss \\1, L1 \\2/p" \
        -e "s/$valid.*\| accuracy ([0-9.]+) .*$n.*/  update \\3: valid loss \\1, accuracy \\2 %/p" \
        -e "s/$valid.*\| ppl ([0-9.e+]+) .*$n.*/  update \\3: valid loss \\1, perplexity \\2/p" \
        -e '/^leapformer: |^[A-Za-z.]*(Error|Exception|Interrupt)\b/p'
}

# file_name ATTENTION: a name for the folder of a run with it.
file_name() {
    tr '/,*:=' '+____' <<<"$1"
}

# train_speech DATA CONFIG SUBSET SAVE OPTIONS...: train on {train,dev}_SUBSET of a speech manifest folder.
train_speech() {
    local data=$1 config=$2 subset=$3 save=$4
    shift 4
    train "$data" "$save" --task speech_to_text --config-yaml "$config" \
        --train-subset "train_$subset" --valid-subset "dev_$subset" --report-accuracy "$@"
}

# simul_eval DATA CONFIG SET CHECKPOINT K OUT OPTIONS...: SimulEval with the wait-k agent on SET.source, then our scores.
simul_eval() {
    local data=$1 config=$2 set=$3 checkpoint=$4 k=$5 out=$6
    shift 6
    OMP_NUM_THREADS=1 simuleval --agent-class leapformer_fairseq.agents.LeapformerAgent \
        --checkpoint "$checkpoint" --data-root "$data" --config-yaml "$config" --waitk-lagging "$k" \
        --source "$data/$set.source" --target "$data/$set.target" --output "$out" \
        --source-segment-size 40 --quality-metrics BLEU --latency-metrics AL LAAL AP DAL ATD "$@"
    leapformer score "$out" --json "$out/scores.json"
}

# offline_eval DATA CONFIG SET CHECKPOINT OUT OPTIONS...: fairseq-generate on the whole source of SET_st, then our scores.
offline_eval() {
    local data=$1 config=$2 set=$3 checkpoint=$4 out=$5
    shift 5
    leapformer generate "$data" --task speech_to_text --config-yaml "$config" --gen-subset "${set}_st" \
        --path "$checkpoint" --model-overrides "{'waitk_lagging': 'offline'}" --max-tokens 20000 \
        --num-workers 1 --required-batch-size-multiple 1 --results-path "$out" "$@"
    leapformer score "$out/generate-${set}_st.txt" --references "$data/$set.target" --json "$out/scores.json"
}

# lock_run DIR OPTIONS...: make DIR the folder of a run with these options; fail if it holds another run.
lock_run() {
    local dir=$1 options
    shift
    options=$*
    if [[ -f $dir/options ]]; then
        [[ $(<"$dir/options") == "$options" ]] ||
            fail "$dir holds the results of another run ($(<"$dir/options")); choose another --out or delete it"
    elif [[ -d $dir && -n $(ls -A "$dir") ]]; then
        fail "$dir is not empty and not a run of this script; choose another --out"
    else
        mkdir -p "$dir"
        echo "$options" >"$dir/options"
    fi
}

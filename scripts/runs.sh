# Shared by the recipes that train a list of attentions with a list of seeds: lm.sh, mlm.sh and glue.sh source it.
# They define:
#
#   task_options    fairseq-train's task options and, last, the flag that takes the plan
#   evaluate        function CHECKPOINT OUT: writes the scores of a model to OUT/scores.json
#   begin_training  optional function, called once the options are known
. "$(dirname "${BASH_SOURCE[0]}")/text.sh"

runs_value_options="--out --attention --seeds --epochs --jobs --workers"
marks='' # what identifies a run besides attention, seed and training options
tasks='' # one run for each of them, if any

# usage_of_runs EVALUATION: --help for the options that these recipes share.
usage_of_runs() {
    cat <<HELP
  --out DIR             prepared data and runs; repeat the command to resume
  --paper NAME          hyperparameters: $(papers)
  --attention LIST      mechanisms or plans, in quotes; each is trained with each seed (default: the configuration's);
                        options after colons, as in luna:luna-length=32
  --seeds LIST          training seeds, in quotes (default: the configuration's)
  --epochs N            maximum passes over the training data (default: the configuration's)
  --jobs N              parallel training runs, on one core each if more than one (default: the configuration's)
  --workers N           processes that binarise the text (default: 1)
  --train-options TEXT  more options for training, e.g. "--max-update 1000 --fp16"
  --eval-options TEXT   more options for $1
  --dry-run             print the settings, do nothing
  --help                this text

Every run is part of OUT/table.md, so further attentions and seeds with the same --out are added to it. If an option
is repeated, the last value counts, so all of configs/$dataset/NAME.sh can be overridden.
HELP
}

# binarise TEXT BINARY OPTIONS...: the data that fairseq trains on; OPTIONS name the files. fairseq does not overwrite the
# dictionary of an interrupted run, so it is deleted first.
binarise() {
    local binary=$1
    shift
    rm -f "$binary/dict.txt"
    mkdir -p "$binary"
    logged "$binary/preprocess.log" leapformer preprocess --only-source --destdir "$binary" --workers "$workers" "$@"
}

# each COMMAND: COMMAND ATTENTION SEED [TASK] for every run, in parallel with --jobs.
each() {
    local what=$1 name number task at_once=$jobs plans numbers kinds runs=()
    read -ra plans <<<"$attention"
    read -ra numbers <<<"$seeds"
    read -ra kinds <<<"$tasks"
    ((${#kinds[@]})) || kinds=('')
    for name in "${plans[@]}"; do
        [[ $(plan_of "$name") != */* ]] || fail "--attention $name: the model has one attention block; give one plan for it"
        for number in "${numbers[@]}"; do
            whole_number --seeds "$number"
            for task in "${kinds[@]}"; do
                runs+=("$name $number $task")
            done
        done
    done
    ((${#runs[@]})) || fail "--attention and --seeds name no run; give at least one of each"
    whole_number --jobs "$jobs"
    ((at_once <= ${#runs[@]})) || at_once=${#runs[@]}
    if ((at_once == 1)); then
        share_of job1
    else
        OMP_NUM_THREADS=1 together share_of $(seq -f "job%.0f" "$at_once")
    fi
}

# share_of JOB: every at_once-th of `runs`.
share_of() {
    local n run
    for ((n = ${1#job} - 1; n < ${#runs[@]}; n += at_once)); do
        read -ra run <<<"${runs[n]}"
        "$what" "${run[@]}"
    done
}

# run_folder ATTENTION SEED [TASK]: the folder of this run.
run_folder() {
    echo "$out/$(file_name "$1")-seed$2${3:+-$3}"
}

begin_training() {
    :
}

step_train() {
    begin_training
    need_step "$data/binary" prepare
    each train_run
}

train_run() {
    local run
    run=$(run_folder "$1" "$2")
    say "training $1, seed $2, in $run"
    lock_run "$run" "--attention $1 --seed $2 ${marks:+$marks }${train_options[*]}"
    once "$run/model" train "$data/binary" "$run/model" "${task_options[@]}" "$(plan_of "$1")" --seed "$2" \
        --no-epoch-checkpoints "${train_options[@]}" $(options_of "$1")
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
    lock_run "$run/test" "${eval_options[*]}"
    once "$run/test" evaluate "$run/model/checkpoint_best.pt" "$run/test"
}

# table NOTE...: of all runs, in the order of --attention.
table() {
    local rows expected note notes=()
    read -ra rows <<<"$attention"
    read -ra expected <<<"${expect:+--expect $expect}"
    for note in "$@"; do
        notes+=(--note "$note")
    done
    leapformer table "$out" --title "$dataset" --rows "${rows[@]}" "${expected[@]}" "${notes[@]}"
    say "done: $out/table.md, table.json, table.png; details in the folders of the runs"
}

#!/usr/bin/env bash
# Sparsefinder from data to curves: an entmax teacher, its graphs, projections, sparsity against recall and quality. See
# --help.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
. "$here/../common.sh"

usage() {
    cat <<'HELP'
usage: bash scripts/sparsefinder/run.sh --root DIR --out DIR --task mlm|mt [OPTIONS]

Trains a model with softmax and goes on with entmax, extracts the graphs of its attention, fits projections and
centroids for each head, measures all patterns, and draws the curves. Run it again to resume.

  --root DIR              the data: {train,valid,test}.txt as for scripts/mlm, or {train,val,test_2016_flickr}.{en,de} as
                          for scripts/multi30k; plain or with .gz
  --out DIR               teacher, graphs and results
  --task mlm|mt           a masked language model, or translation (configs/sparsefinder)
  --train-on-valid        mlm, without a training text: nine tenths of the validation text, the last tenth validates
  --grid NAME             section5 or c2 of the paper, union, small (default: union)
  --seeds LIST            of the projections, in quotes (default: "1 2 3")
  --epochs LIST           of softmax and of entmax, in quotes (default: the configuration's)
  --stages LIST           of softmax before these, TOKENS:EPOCHS each, on pieces of so many tokens; in quotes, "" for
                          none (default: the configuration's)
  --teacher-options TEXT  more options for scripts/mlm/run.sh or scripts/multi30k/run.sh, e.g. "--vocab-size 4000"
  --train-options TEXT    more options for both trainings
  --extract-options TEXT  more options for `leapformer sparsefinder extract`, e.g. "--sentences 100"
  --fit-options TEXT      ... fit, e.g. "--loss query"
  --pareto-options TEXT   ... pareto, e.g. "--quality-points 0"
  --dry-run               print the commands, do nothing
  --help                  this text
HELP
}

root='' out='' task='' on_valid='' grid=union seeds="1 2 3" epochs='' given_stages=()
more_teacher='' more_train='' more_extract='' more_fit='' more_pareto='' dry_run=''
while (($#)); do
    case $1 in
        --help | -h) usage && exit ;;
        --train-on-valid) on_valid=1 && shift && continue ;;
        --dry-run) pretend && dry_run=1 && shift && continue ;;
        --root | --out | --task | --grid | --seeds | --epochs | --stages | --*-options) (($# > 1)) || fail "$1 needs a value; see --help" ;;
        *) fail "unknown option $1; see --help" ;;
    esac
    case $1 in
        --root) root=$2 ;;
        --out) out=$2 ;;
        --task) task=$2 ;;
        --grid) grid=$2 ;;
        --seeds) seeds=$2 ;;
        --epochs) epochs=$2 ;;
        --stages) given_stages=(given "$2") ;;
        --teacher-options) more_teacher=$2 ;;
        --train-options) more_train=$2 ;;
        --extract-options) more_extract=$2 ;;
        --fit-options) more_fit=$2 ;;
        --pareto-options) more_pareto=$2 ;;
        *) fail "unknown option $1; see --help" ;;
    esac
    shift 2
done
[[ $out ]] || fail "no --out given; see --help"
[[ $task == mlm || $task == mt ]] || fail "--task ${task:-(none)}: choose mlm or mt"
[[ $dry_run ]] || need_dir --root "$root"
. "$ROOT/configs/sparsefinder/$task.sh"
[[ ! $epochs ]] || read -r softmax_epochs entmax_epochs <<<"$epochs"
[[ $softmax_epochs =~ ^[1-9][0-9]*$ && ${entmax_epochs:-} =~ ^[1-9][0-9]*$ ]] ||
    fail "--epochs $epochs: give two numbers, of softmax and of entmax"
((${#given_stages[@]} == 0)) || stages=${given_stages[1]}
for stage in $stages; do
    [[ $stage =~ ^[1-9][0-9]*:[1-9][0-9]*$ ]] || fail "--stages $stages: give TOKENS:EPOCHS for each, as in \"32:7 64:1\""
done
activate
if [[ ! $dry_run ]]; then
    mkdir -p "$out"
    out=$(cd "$out" && pwd)
    root=$(cd "$root" && pwd)
fi

# text NAME: a text of --root, unpacked if need be.
text() {
    local file
    for file in "$root/$1.txt" "$root/wiki.$1.tokens"; do
        [[ ! -f $file ]] || { cat "$file" && return; }
        [[ ! -f $file.gz ]] || { gzip -dc "$file.gz" && return; }
    done
    fail "--root $root holds no $1.txt and no wiki.$1.tokens, nor with .gz"
}

# split_valid DIR: training and validation text from the validation text.
split_valid() {
    local lines
    text valid >"$1/all.txt"
    text test >"$1/test.txt"
    lines=$(wc -l <"$1/all.txt")
    head -n $((lines * 9 / 10)) "$1/all.txt" >"$1/train.txt"
    tail -n +$((lines * 9 / 10 + 1)) "$1/all.txt" >"$1/valid.txt"
}

if [[ $on_valid ]]; then
    [[ $task == mlm ]] || fail "--train-on-valid is for --task mlm; leave it out"
    [[ $dry_run ]] || once "$out/text" split_valid "$out/text"
    root=$out/text
fi

# teach FOLDER ATTENTION EPOCHS OPTIONS: train in OUT/FOLDER with the recipe of the data set; `best` is what comes out.
teach() {
    bash "$ROOT/scripts/$teacher/run.sh" --root "$root" --out "$out/$1" --attention "$2" --epochs "$3" \
        --train-options "$train_options $more_train $4" $more_teacher
    best=$out/$1/$(file_name "$2")-seed1/model/checkpoint_best.pt
}

say "teacher: $softmax, then $entmax"
best='' from="--warmup-updates 50 --finetune-from-model"
for stage in $stages; do
    teach "stage-${stage%:*}" "$softmax" "${stage#*:}" "--tokens-per-sample ${stage%:*} ${best:+$from $best}"
done
teach teacher "$softmax" "$softmax_epochs" "${best:+$from $best}"
teach teacher "$entmax" "$entmax_epochs" "--finetune-from-model $best $entmax_options"

data=$out/teacher/data
checkpoint=$best
say "graphs of $block"
leapformer sparsefinder extract "$data/binary" --path "$checkpoint" --block "$block" --out "$out/graphs" \
    $extract_options $more_extract
say "projections and centroids"
leapformer sparsefinder fit "$out/graphs" --out "$out/fitted" --seeds $seeds $fit_options $more_fit
say "curves"
references=()
[[ $task == mlm ]] || references=(--references "$data/text/raw/test.de")
leapformer sparsefinder pareto "$out/graphs" --fitted $(printf "$out/fitted/seed%s.pt " $seeds) --out "$out/curves" \
    --grid "$grid" --data "$data/binary" "${references[@]}" $pareto_options $more_pareto
say "done: $out/curves/curves.md, curves.csv, curves.json, recall.png, quality.png"

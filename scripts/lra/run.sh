#!/usr/bin/env bash
# Long Range Arena from data to tables, scores and pictures. See --help.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

usage() {
    cat <<'HELP'
usage: bash scripts/lra/run.sh --out DIR (--reduced | --protocol NAME --root DIR) [OPTIONS]

Prepares the data, trains and tests every task, row and seed of a protocol, and writes the table of accuracies beside
the papers', the parameters of the rows, the re-weighting of cosFormer and LeaPformer in ListOps (figure 3 of the
LeaPformer paper), then measures speed and memory, and writes composite scores and figure 1. Run it again to resume.

  --out DIR             data, trainings and results
  --reduced             shorter ListOps and easier Pathfinder, generated: a few minutes of one core a training
  --protocol NAME       leapformer, luna, corrected, or a YAML file like theirs (leapformer_fairseq/lra/protocols)
  --root DIR            the published files, DIR/TASK or DIR itself (docs/lra.md says which); not for --reduced
  --tasks LIST          in quotes (default: all of the protocol)
  --attention LIST      rows of the protocol, in quotes (default: all)
  --seeds LIST          in quotes (default: the protocol's)
  --quirks NAMES        published flaws, with commas, or none (default: the protocol's)
  --jobs N              trainings at once, one thread each (default: the number of cores)
  --no-bench            leave out speed and memory, which take half an hour of a quiet machine, and the scores
  --train-options TEXT  more options for all trainings, e.g. "--max-update 100"
  --dry-run             print the commands, do nothing
  --help                this text
HELP
}

out='' root='' protocol='' tasks='' attention='' seeds='' quirks='' jobs=$(nproc) bench=1 train_options='' dry_run=''
while (($#)); do
    case $1 in
        --help | -h) usage && exit ;;
        --reduced) protocol=reduced && shift && continue ;;
        --dry-run) pretend && dry_run=1 && shift && continue ;;
        --no-bench) bench='' && shift && continue ;;
        --out | --root | --protocol | --tasks | --attention | --seeds | --quirks | --jobs | --train-options)
            (($# > 1)) || fail "$1 needs a value; see --help"
            name=${1#--}
            printf -v "${name//-/_}" '%s' "$2"
            shift 2
            ;;
        *) fail "unknown option $1; see --help" ;;
    esac
done
[[ $out ]] || fail "no --out given; see --help"
[[ $protocol ]] || fail "no --protocol and no --reduced given; see --help"
[[ ! $root || $dry_run ]] || need_dir --root "$root"
activate

common=(--protocol "$protocol" ${tasks:+--tasks $tasks} ${quirks:+--quirks "$quirks"})
rows=(${attention:+--attention $attention})
say "data of protocol $protocol in $out/data"
leapformer lra prepare "${common[@]}" --data "$out/data" ${root:+--root "$root"}
say "trainings in $out/runs, $jobs at once"
leapformer lra run "${common[@]}" "${rows[@]}" --data "$out/data" --out "$out/runs" ${seeds:+--seeds $seeds} \
    --jobs "$jobs" --train-options "$train_options"
say "accuracies"
leapformer lra table "$out/runs" --out "$out/results"
leapformer lra params "${common[@]}" "${rows[@]}" --out "$out/results"
for row in cosformer leap; do
    for checkpoint in "$out/runs/listops/$row"-seed*/checkpoint_best.pt; do
        [[ -f $checkpoint && ! -d $out/results/maps-$row ]] || continue
        say "re-weighting of $row in ListOps"
        leapformer maps --path "$checkpoint" --data "$out/data/listops" --input test --lines 200 \
            --out "$out/results/maps-$row"
    done
done
if [[ $bench ]]; then
    say "speed and memory"
    grep -qs '"cases_left": 0' "$out/results/lra.json" || leapformer bench lra --out "$out/results"
    leapformer lra rcp "$out/runs" --bench "$out/results/lra.json" --out "$out/results"
fi
say "done: $out/results"

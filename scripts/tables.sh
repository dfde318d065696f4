#!/usr/bin/env bash
# The papers' tables of trained models, a command each. See --help.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
readonly TABLES=$ROOT/configs/tables.txt

usage() {
    cat <<HELP
usage: bash scripts/tables.sh TABLE --out DIR [OPTIONS]

Trains and evaluates the rows of a table, one after the other, with the recipe of its data set, whose table of results is
written again after each. Rows of other tables of the same recipe and --out are not trained again. Repeat the command to
resume. A row that fails, as some do in the papers, is named at the end.

  TABLE        $(names | fold -sw 100 | sed '2,$s/^/               /')
               (docs/papers.md says what is in them)
  --rows LIST  only these, in quotes, or others
  --dry-run    print the recipes' commands and settings, train nothing
  OPTIONS      of the recipe, such as --root and --out: bash scripts/RECIPE/run.sh --help
HELP
}

# names: of all tables.
names() {
    sed -nE 's/^([a-z][^ ]*).*/\1/p' "$TABLES" | paste -sd ' '
}

# read_table NAME: its recipe, options and rows.
read_table() {
    local line inside=''
    while IFS= read -r line; do
        case $line in
            "$1 "*) inside=1 && read -r _ recipe line <<<"$line" && read -ra options <<<"$line" ;;
            ' '*) [[ ! $inside ]] || rows+=("${line// /}") ;;
            '#'*) ;;
            *) inside='' ;;
        esac
    done <"$TABLES"
}

recipe='' options=() rows=() more=()
[[ ${1:---help} != -* ]] || { usage && exit; }
name=$1
shift
read_table "$name"
[[ $recipe ]] || fail "there is no table $name; choose from $(names)"
while (($#)); do
    case $1 in
        --help | -h) usage && exit ;;
        --rows) read -ra rows <<<"${2:?--rows needs a value}" && shift 2 ;;
        *) more+=("$1") && shift ;;
    esac
done

failed=()
trap 'fail "interrupted; the same command goes on from here"' INT TERM
if ((${#rows[@]} == 0)); then
    bash "$ROOT/scripts/$recipe/run.sh" "${options[@]}" "${more[@]}"
fi
for row in "${rows[@]}"; do
    bash "$ROOT/scripts/$recipe/run.sh" "${options[@]}" --attention "$row" "${more[@]}" || failed+=("$row")
done
((${#failed[@]} == 0)) || fail "$name: failed: ${failed[*]}; the messages above say why"

# What the recipes for text share; translation.sh and runs.sh source it and say which options and steps there are.
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

list_options="--train-options --eval-options"

finish_options() {
    whole_number --epochs "$epochs"
    train_options=(--max-epoch "$epochs" "${train_options[@]}")
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

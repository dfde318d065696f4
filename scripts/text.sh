# Shared by the recipes for text; translation.sh and runs.sh source it and define options and steps.
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

list_options="--train-options --eval-options"

finish_options() {
    whole_number --epochs "$epochs"
    train_options=(--max-epoch "$epochs" "${train_options[@]}")
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

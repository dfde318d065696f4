# Shared by the recipes for text; translation.sh and runs.sh source it and define options and steps.
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

list_options="--train-options --eval-options"

finish_options() {
    whole_number --epochs "$epochs"
    train_options=(--max-epoch "$epochs" "${train_options[@]}")
}


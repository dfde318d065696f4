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

# brief_text: of fairseq's training log only the losses, accuracies and errors, a short line each.
brief_text() {
    local loss='loss ([0-9.]+) .*\| ppl ([0-9.e+]+) .*num_updates ([0-9]+)'
    local accuracy='loss ([0-9.]+) .*\| accuracy ([0-9.]+) .*num_updates ([0-9]+)'
    sed -unE \
        -e 's/.*train_inner[ :|]+epoch.* loss=([0-9.]+),.* num_updates=([0-9]+),.*/  update \2: loss \1/p' \
        -e "s/.*valid on .*\| $loss.*/  update \\3: valid loss \\1, perplexity \\2/p" \
        -e "s/.*valid on .*\| $accuracy.*/  update \\3: valid loss \\1, accuracy \\2 %/p" \
        -e '/^leapformer: |^[A-Za-z.]*(Error|Exception|Interrupt)\b/p'
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

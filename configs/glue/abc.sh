# The models of configs/mlm/abc.sh (Peng et al., 2022, arXiv:2110.02488), which has results on these four tasks; how they
# were fine-tuned it does not tell.
. "$(dirname "${BASH_SOURCE[0]}")/roberta.sh"
attention="softmax abc-linformer abc-mlp"

train_options+=(--abc-slots 64) # as in pre-training

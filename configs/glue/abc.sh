# The models of configs/mlm/abc.sh (Peng et al., 2022, arXiv:2110.02488, table 5), fine-tuned as RoBERTa is (appendix
# C.3); fairseq's values for that are in roberta.sh.
. "$(dirname "${BASH_SOURCE[0]}")/roberta.sh"
attention="softmax abc-linformer:abc-slots=64 abc-linformer:abc-slots=128 abc-mlp:abc-slots=64 abc-mlp:abc-slots=128"

# ABC (Peng et al., 2022, arXiv:2110.02488): its models begin as the released RoBERTa-base, get another attention and are
# trained on, on BookCorpus, Wikipedia, OpenWebText and RealNews; the baseline is softmax, trained on like them:
#
#   --init roberta.base/model.pt --vocabulary FOLDER
#
# FOLDER holds encoder.json, vocab.bpe and dict.txt of RoBERTa. The paper tells sizes and dropout; the rest is RoBERTa's.
. "$(dirname "${BASH_SOURCE[0]}")/roberta.sh"
attention="softmax abc-linformer:abc-slots=64 abc-linformer:abc-slots=128 abc-mlp:abc-slots=64 abc-mlp:abc-slots=128"

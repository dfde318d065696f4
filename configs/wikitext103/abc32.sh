# The same with 32 layers, of which a fifth are dropped in training (the paper has 484 million parameters, ours 449; tables 3b and 10; Kasai
# et al., 2021, arXiv:2103.13076), evaluated with 256 words of context. Perplexities of the test text there: softmax 18.5,
# ELU 22.8, RFA 21.3, T2R 20.8, abc-mlp with 32 slots 19.9. Table 10 has 64 slots for this model, table 3b and the text 32.
#
# T2R begins as the trained softmax model:
#
#   --attention t2r --train-options "--finetune-from-model OUT/softmax-seed1/model/checkpoint_best.pt"
#
# Whether its RFA has a gate the paper does not say; the other form is --attention rfa-gate.
. "$(dirname "${BASH_SOURCE[0]}")/abc.sh"
attention="softmax elu rfa:rfa-features=32 abc-mlp:abc-slots=32"
contexts=256

train_options+=(--arch leapformer_lm_wiki103_32 --decoder-layerdrop 0.2)

# Luna (Ma et al., 2021, arXiv:2106.01540) on the documents of ABC's experiment, which its paper does not have: packed
# attention in all blocks with the length and the projections of its translation of sentences (table 5); all else is
# ABC's (abc.sh), so that the two compare. The baseline is --attention softmax.
. "$(dirname "${BASH_SOURCE[0]}")/abc.sh"
attention=luna

train_options+=(--luna-length 32 --luna-projections tied --luna-activation elu1)

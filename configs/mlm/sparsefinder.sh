# Sparsefinder (Treviso et al., 2022, arXiv:2109.12188, Table 6): the released RoBERTa-base with 1.5-entmax, trained on for
# 3,000 updates on WikiText-103:
#
#   --init roberta.base/model.pt --vocabulary FOLDER
#
# FOLDER holds encoder.json, vocab.bpe and dict.txt of RoBERTa. Full entmax has a perplexity of 3.5004 there, at a sparsity
# of 0.9804. Table 6 gives the width of a head, 64, as the hidden size. Warm-up, weight decay and clipping are the released
# code's; blocks of 512 subwords across lines are ours (--sample-break-mode none).
. "$(dirname "${BASH_SOURCE[0]}")/roberta.sh"
attention=entmax

# The last value of an option counts.
train_options+=(
    --lr 3e-5 --warmup-updates 500 --total-num-update 3000 --max-update 3000 --clip-norm 5
    --sample-break-mode none --batch-size 2 --update-freq 32
)

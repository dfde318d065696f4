# Luna (Ma et al., 2021, arXiv:2106.01540): pre-trained from random values, with a packed sequence of 128 rows, on
# BookCorpus and Wikipedia, 3.3 billion tokens, for 250,000 updates on 64 GPUs; everything else is RoBERTa's.
. "$(dirname "${BASH_SOURCE[0]}")/roberta.sh"

attention=luna

# The last value of an option counts.
train_options+=(--luna-length 128 --luna-positions learned --total-num-update 250000 --max-update 250000)

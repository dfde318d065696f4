# Translation of Multi30k, the small model of configs/multi30k/small.sh, entmax in decoder self-attention: softmax first,
# then entmax from there, as the paper does. Epochs are for one core of a CPU, 50 and 25 minutes.
block=decoder-self teacher=multi30k
stages=""
softmax=softmax softmax_epochs=10
entmax=softmax/entmax/softmax entmax_epochs=5
train_options=""
entmax_options="--lr 5e-4 --warmup-updates 100"

extract_options="--min-length 22 --sentences 600" # of over 20 subwords, and the mark of their end
fit_options=""                                     # the paper's Table 5
pareto_options="--quality-points 12"

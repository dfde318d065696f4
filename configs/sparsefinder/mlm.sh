# A masked language model at 512 tokens, the small one of configs/mlm/small.sh: softmax first, then entmax, as the paper
# fine-tunes RoBERTa. Epochs are for one core of a CPU, an hour and half an hour on WikiText-2's validation text.
block=encoder-self teacher=mlm
softmax=softmax softmax_epochs=80
entmax=entmax entmax_epochs=20
train_options="--tokens-per-sample 512"
entmax_options="--lr 3e-4 --warmup-updates 50"

extract_options="--min-length 512 --sentences 400" # of 512 tokens; nine tenths to fit to, one to measure
fit_options=""                                      # the paper's Table 5
pareto_options="--quality-points 12 --limit 100"

# A masked language model at 512 tokens, the small one of configs/mlm/small.sh: softmax first, then entmax, as the paper
# fine-tunes RoBERTa. A model that begins with 512 tokens does not learn to look at neighbours in these times, so it
# begins with short pieces, as BERT did. Epochs are for one core of a CPU and WikiText-2's validation text in 200
# subwords: 35 minutes of short pieces, a quarter of an hour of 512 tokens, and a quarter with entmax.
block=encoder-self teacher=mlm
stages="32:7 64:1 128:1 256:1" # tokens and epochs
softmax=softmax softmax_epochs=3
entmax=entmax entmax_epochs=2
train_options="--tokens-per-sample 512 --max-positions 512 --max-tokens 2048 --warmup-updates 200"
entmax_options="--lr 3e-4 --warmup-updates 50"

extract_options="--min-length 512 --sentences 300" # of 512 tokens; nine tenths to fit to, one to measure
fit_options=""                                      # the paper's Table 5
pareto_options="--quality-points 12 --limit 100"

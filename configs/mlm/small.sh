# A small masked language model for as much text as WikiText-2 has. Values are ours, the same for every attention.
attention="softmax leap" seeds=1
jobs=$(nproc)
epochs=10 # of some 600 updates each on WikiText-2
vocab_size=8000 # BPE
expect=''

train_options=(
    --arch leapformer_mlm_small # 4 layers, 256 wide, feed-forward 1,024, 4 heads
    --leap-factor 4
    --optimizer adam --adam-betas '(0.9,0.98)' --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 1
    --lr 1e-3 --lr-scheduler inverse_sqrt --warmup-updates 500
    --tokens-per-sample 128 --sample-break-mode none --max-tokens 4096 --log-interval 50
)
eval_options=(--max-tokens 8192)

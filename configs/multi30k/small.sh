# Multi30k, 29,000 captions: a small transformer that trains on a CPU. Values are ours, the same for every attention.
pair=en-de
vocab_size=8000 # BPE, for both languages together
epochs=16
average=0 # translate with the best epoch by validation loss

train_options=(
    --arch leapformer_nmt_multi30k # 3 + 3 layers, 256 wide, feed-forward 512, 4 heads, dropout 0.3, embeddings shared
    --leap-factor 4 --cosformer-length 100 # no caption has more subwords
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1
    --optimizer adam --adam-betas '(0.9,0.98)'
    --lr 2e-3 --lr-scheduler inverse_sqrt --warmup-updates 500
    --max-tokens 4096 --log-interval 50
)
eval_options=(--beam 5)

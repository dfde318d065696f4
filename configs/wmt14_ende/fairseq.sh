# WMT 2014 English-German, the base model of "Attention Is All You Need" (Vaswani et al., 2017, arXiv:1706.03762) with
# the optimisation of fairseq's example (examples/scaling_nmt; Ott et al., 2018, arXiv:1806.00187).
#
# A batch is max-tokens x update-freq x GPUs, here about 25,000 target tokens on 8 GPUs, as in the paper; with fewer
# raise the update-freq in proportion (--train-options "--update-freq 8" on one).
pair=en-de
vocab_size=32000
epochs=100 # more than --max-update
average=5 # as in the paper, where they are 10 minutes apart

train_options=(
    --arch leapformer_nmt_wmt14_tied # 6 + 6 layers, 512 wide, feed-forward 2,048, 8 heads, all embeddings shared
    --leap-factor 4 --cosformer-length 251 # the longest training sentence and its end
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1
    --optimizer adam --adam-betas '(0.9,0.98)' --clip-norm 0
    --lr 7e-4 --lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-7
    --dropout 0.1
    --max-tokens 3584 --update-freq 1 --max-update 100000 --log-interval 100
)
eval_options=(--beam 4 --lenpen 0.6)

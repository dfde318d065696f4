# IWSLT 2014 German-English with the values of fairseq's example (examples/translation). Two things differ from it, so
# BLEU is not that of the example, which is of lower-cased, tokenised text: the text is cased and untokenised, and there
# is one dictionary for both languages.
pair=de-en
vocab_size=10000
epochs=50 # ours; the example names no end
average=0

train_options=(
    --arch leapformer_nmt_iwslt_tied # 6 + 6 layers, 512 wide, feed-forward 1,024, 4 heads, decoder embeddings tied
    --leap-factor 4 --cosformer-length 176 # the longest training sentence and its end
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1
    --optimizer adam --adam-betas '(0.9,0.98)' --clip-norm 0
    --lr 5e-4 --lr-scheduler inverse_sqrt --warmup-updates 4000
    --dropout 0.3 --weight-decay 1e-4
    --max-tokens 4096 --log-interval 100
)
eval_options=(--beam 5)

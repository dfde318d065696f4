# ABC (Peng et al., 2022, arXiv:2110.02488, tables 4 and 11, appendix C.2): IWSLT 2014 Spanish-English, talks as
# documents, in windows of four sentences; validated on dev2010, tested on tst2010 to tst2012. Softmax in the encoder,
# a memory of 64 slots in causal and of 128 in cross-attention; the baseline is --attention softmax. The paper tells
# sizes, subwords, warm-up, dropout, averaging and search; the rest is that of configs/iwslt14_deen, but for the epochs.
#
# The paper's BLEU is 39.7, 39.9 with softmax, of text prepared otherwise: Moses' tokens and true case there, cased and
# untokenised text here. Its target context at test time is the model's own prediction; here that is what the model
# writes first of the same window, which is translated as a whole and of which the last sentence counts.
pair=es-en
vocab_size=30000
window=4
epochs=20 # ours; an epoch is as long as four of single sentences
average=5
attention=softmax/abc-mlp/abc-mlp

train_options=(
    --arch leapformer_nmt_wmt14_tied # 6 + 6 layers, 512 wide, 8 heads, all embeddings shared
    --encoder-ffn-embed-dim 1024 --decoder-ffn-embed-dim 1024
    --abc-slots 128/64/128 # encoder (without a memory here), causal, cross
    --leap-factor 4 --cosformer-length 704 # four of the longest training sentences, their separators and the end
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1
    --optimizer adam --adam-betas '(0.9,0.98)' --clip-norm 0
    --lr 5e-4 --lr-scheduler inverse_sqrt --warmup-updates 4000
    --dropout 0.3 --weight-decay 1e-4
    --max-tokens 4096 --log-interval 100
)
# No more than this for a window: fairseq's 200 subwords would cut long ones before their last sentence.
eval_options=(--beam 5 --lenpen 0.6 --max-len-a 1.5 --max-len-b 50)

# IWSLT 2017 English-German, and --pair en-fr, as in Sparsefinder (Treviso et al., 2022, arXiv:2109.12188, Table 3): entmax
# in decoder self-attention. The paper begins with a softmax transformer trained on ParaCrawl:
#
#   --train-options "--finetune-from-model paracrawl/checkpoint_best.pt"
#
# It also drops out whole words with probability 0.1 (CoWord dropout), which fairseq does not have for translation. Full
# entmax has 34.47 BLEU there, and 42.65 for English-French.
pair=en-de
vocab_size=32000 # BPE, for both languages together
epochs=20
average=0
attention=softmax/entmax/softmax

train_options=(
    --arch leapformer_nmt_iwslt17 # 6 + 6 layers, 1,024 wide, feed-forward 4,096, 16 heads, dropout 0.3, embeddings shared
    --entmax-alpha 1.5
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 # smoothing is ours; the paper names none
    --optimizer adam --adam-betas '(0.9,0.98)'
    --lr 5e-4 --lr-scheduler inverse_sqrt --warmup-updates 4000
    --patience 10
    --max-tokens 4096 --log-interval 100 # the batch is ours
)
eval_options=(--beam 5)

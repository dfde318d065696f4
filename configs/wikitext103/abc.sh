# ABC (Peng et al., 2022, arXiv:2110.02488, tables 3a and 10), language models on WikiText-103: 16 layers, 1,024 wide,
# feed-forward 4,096, 8 heads (the paper has 242 million parameters, ours 247; Baevski and Auli, 2019), evaluated without context and with
# 480 words of it. Perplexities of the test text there: softmax 20.5 and 19.0, Linformer with 64 slots 27.2 and 30.7,
# random slots (64) 24.0 and 23.1, abc-mlp with 32 slots 21.9 and 20.5, with 64 21.1 and 19.5.
#
# The batch is 64 samples of 512 words; on the paper's four GPUs 8 a GPU and 2 at once. Of the optimisation the paper tells
# the learning rate; the rest is that of Baevski and Auli in fairseq's example (examples/language_model).
attention="softmax abc-linformer:abc-slots=64 abc-random:abc-slots=64 abc-mlp:abc-slots=32 abc-mlp:abc-slots=64" seeds=1
jobs=1      # with all cores, or GPUs
epochs=1000 # --max-update ends the training
contexts="0 480"
expect=''

train_options=(
    --arch leapformer_lm_wiki103_big
    --abc-max-length 512
    --criterion adaptive_loss --ddp-backend legacy_ddp # fairseq refuses this loss with the other one
    --dropout 0.3 --attention-dropout 0.1 --activation-dropout 0.1 --adaptive-softmax-dropout 0.2
    --optimizer nag --momentum 0.99 --clip-norm 0.1
    --lr 1.0 --lr-scheduler cosine --warmup-updates 16000 --warmup-init-lr 1e-7
    --lr-period-updates 270000 --t-mult 2 --lr-shrink 0.75 --min-lr 1e-4 --max-update 286000
    --tokens-per-sample 512 --sample-break-mode none --batch-size 8 --update-freq 2 --log-interval 100
)
eval_options=(--tokens-per-sample 512 --batch-size 16 --softmax-batch 1024)

# LeaPformer (Agostinelli et al., 2024, arXiv:2405.13046), language model on WikiText-103, with the values of the paper;
# leapformer_script.sh has those of the authors' released script.
#
# A batch is max-tokens x update-freq x GPUs: 32,768 tokens on the paper's 4 GPUs; with fewer raise the update-freq in
# proportion (--train-options "--update-freq 8" on one).
attention=leap seeds=1
jobs=1      # with all cores, or GPUs
epochs=1000 # --max-update ends the training
expect=''

train_options=(
    --arch leapformer_lm_wiki103 # 16 layers, 512 wide, feed-forward 2,048, 8 heads, adaptive embeddings 20k/60k
    --leap-factor 4 --cosformer-length 512
    --criterion adaptive_loss --ddp-backend legacy_ddp # fairseq refuses this loss with the other one
    --dropout 0.3 --attention-dropout 0.1 --adaptive-softmax-dropout 0.2
    --optimizer nag --momentum 0.99 --clip-norm 0.1
    --lr 1.0 --lr-scheduler cosine --warmup-updates 8000 --warmup-init-lr 1e-7
    # The paper's period is 140,000 updates: fairseq would begin a second one, at a tenth of the rate, for the last 2,000
    # of 150,000 updates. One period to the end, where the rate is at its minimum.
    --lr-period-updates 142000 --min-lr 1e-9 --max-update 150000
    --tokens-per-sample 512 --sample-break-mode none --max-tokens 4096 --update-freq 2 --log-interval 100
)
# Every word is predicted from the 511 before it, one at a time: hours. "--context-window 400" is ten times as fast.
eval_options=(--tokens-per-sample 512 --context-window 511 --batch-size 16 --softmax-batch 1024)

# RoBERTa-base (Liu et al., 2019, arXiv:1907.11692) as fairseq pre-trains it on text of any size. abc.sh and luna.sh say
# where those papers differ; of what they do not tell, they have these values.
#
# A batch is batch-size x update-freq x GPUs: 2,048 samples on 8 GPUs of 32 GiB; with fewer raise the update-freq in
# proportion (--train-options "--update-freq 128" on one).
attention=leap seeds=1
jobs=1       # with all cores, or GPUs
epochs=10000 # --max-update ends the training
vocab_size=50000
expect=''

train_options=(
    --arch leapformer_mlm # 12 layers, 768 wide, feed-forward 3,072, 12 heads
    --leap-factor 4
    --dropout 0.1 --attention-dropout 0.1
    --optimizer adam --adam-betas '(0.9,0.98)' --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 0
    --lr 5e-4 --lr-scheduler polynomial_decay --warmup-updates 10000 --total-num-update 125000 --max-update 125000
    # Samples of whole sentences; lines of more subwords than that are left out.
    --tokens-per-sample 512 --sample-break-mode complete
    --batch-size 16 --update-freq 16 --log-interval 200
)
eval_options=(--batch-size 16)

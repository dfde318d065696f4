# RoBERTa-base (Liu et al., 2019, arXiv:1907.11692) on GLUE as fairseq fine-tunes it on one GPU.
attention=leap seeds=1 tasks="MNLI QNLI QQP SST-2"
jobs=1
epochs=10
expect=''

train_options=(
    --arch leapformer_mlm --max-positions 512 # as in pre-training
    --leap-factor 4
    --dropout 0.1 --attention-dropout 0.1
    --optimizer adam --adam-betas '(0.9,0.98)' --adam-eps 1e-6 --weight-decay 0.1 --clip-norm 0
    --lr 1e-5 --lr-scheduler polynomial_decay
    --batch-size 32 --max-tokens 4400 --log-interval 200
)
declare -gA task_settings=(
    [MNLI]="--total-num-update 123873 --max-update 123873 --warmup-updates 7432"
    [QNLI]="--total-num-update 33112 --max-update 33112 --warmup-updates 1986"
    [QQP]="--total-num-update 113272 --max-update 113272 --warmup-updates 28318"
    [SST-2]="--total-num-update 20935 --max-update 20935 --warmup-updates 1256"
)
eval_options=(--batch-size 32)

# The models of configs/mlm/small.sh, fine-tuned; SST-2 alone, since the others take hours on a CPU. Values are ours, the
# same for every attention.
attention="softmax leap" seeds=1 tasks=SST-2
jobs=$(nproc)
epochs=3
expect=''

train_options=(
    --arch leapformer_mlm_small --max-positions 128 # as in pre-training
    --leap-factor 4
    --optimizer adam --adam-betas '(0.9,0.98)' --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 1
    --lr 2e-4 --lr-scheduler polynomial_decay
    --batch-size 32 --log-interval 100
)
# Three epochs, after a warm-up of 6 %.
declare -gA task_settings=(
    [MNLI]="--total-num-update 36816 --warmup-updates 2209"
    [QNLI]="--total-num-update 9822 --warmup-updates 589"
    [QQP]="--total-num-update 34113 --warmup-updates 2047"
    [SST-2]="--total-num-update 6315 --warmup-updates 379"
)
eval_options=(--batch-size 64)

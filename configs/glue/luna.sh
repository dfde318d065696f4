# Luna (Ma et al., 2021, arXiv:2106.01540) on GLUE, with the values that its authors published with their code.
. "$(dirname "${BASH_SOURCE[0]}")/roberta.sh"
attention=luna tasks="QNLI QQP SST-2"

# The last value of an option counts.
train_options+=(--luna-length 128 --max-tokens 8192) # the length of pre-training
declare -gA task_settings=(
    [QNLI]="--total-num-update 65520 --max-update 65520 --warmup-updates 2000 --activation-dropout 0.1"
    [QQP]="--total-num-update 228000 --max-update 228000 --warmup-updates 6850 --activation-dropout 0.1"
    [SST-2]="--total-num-update 21050 --max-update 21050 --warmup-updates 1263"
)
epochs=20

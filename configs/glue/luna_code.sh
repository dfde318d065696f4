# The same with the values that Luna's authors published with their code.
. "$(dirname "${BASH_SOURCE[0]}")/luna.sh"

declare -gA task_settings=(
    [QNLI]="--total-num-update 65520 --max-update 65520 --warmup-updates 2000 --activation-dropout 0.1"
    [QQP]="--total-num-update 228000 --max-update 228000 --warmup-updates 6850 --activation-dropout 0.1"
    [SST-2]="--total-num-update 21050 --max-update 21050 --warmup-updates 1263"
)
epochs=20

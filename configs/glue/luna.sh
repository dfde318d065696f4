# Luna (Ma et al., 2021, arXiv:2106.01540, table 4) on GLUE: 10 epochs, of which 6 % are warm-up, as in RoBERTa. The paper
# chose learning rates and batch sizes by a sweep: repeat with --train-options "--lr 2e-5 --batch-size 16" and others.
# luna_code.sh has the values that its authors published with their code.
. "$(dirname "${BASH_SOURCE[0]}")/roberta.sh"
attention=luna tasks="QNLI QQP SST-2"

# The last value of an option counts.
train_options+=(--luna-length 128 --luna-positions learned --max-tokens 8192) # the length of pre-training
task_settings[QQP]="--total-num-update 113272 --max-update 113272 --warmup-updates 6796"

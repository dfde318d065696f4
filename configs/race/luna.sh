# Luna (Ma et al., 2021, arXiv:2106.01540, table 4) on RACE, the models of configs/mlm/luna.sh: 65.2 % in the paper, 65.6 with
# softmax. The paper chose learning rates and batch sizes by a sweep; these values, also the epochs, are those that its
# authors published with their code. A batch there is 8 questions x 2 at once; an epoch has 87,866 questions.
attention="luna softmax" seeds=1
jobs=1
epochs=20
expect=''

train_options=(
    --arch leapformer_mlm --max-positions 512 # as in pre-training
    --luna-length 128 --luna-positions learned
    --max-option-length 128 # question and choice; the passage is cut to what is left
    --dropout 0.1 --attention-dropout 0.1
    --optimizer adam --adam-betas '(0.9,0.98)' --adam-eps 1e-6 --weight-decay 0.1 --clip-norm 0
    --lr 1e-5 --lr-scheduler polynomial_decay --warmup-updates 6590 --total-num-update 109840 --max-update 109840
    --batch-size 8 --update-freq 2 --log-interval 200
)
eval_options=(--batch-size 16)

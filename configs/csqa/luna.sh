# Luna (Ma et al., 2021, arXiv:2106.01540, table 4) on CommonsenseQA, the models of configs/mlm/luna.sh: 53.1 % in the paper,
# 53.3 with BERT-base. These values are those that its authors published with their code.
attention="luna softmax" seeds=1
jobs=1
epochs=1000 # --max-update ends the training
expect=''

train_options=(
    --arch leapformer_mlm --max-positions 512 # as in pre-training
    --luna-length 128 --luna-positions learned
    --dropout 0.2 --attention-dropout 0.1
    --optimizer adam --adam-betas '(0.9,0.98)' --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 0
    --lr 1e-5 --lr-scheduler polynomial_decay --warmup-updates 150 --total-num-update 8000 --max-update 8000
    --batch-size 32 --log-interval 100
)
eval_options=(--batch-size 32)

# Luna (Ma et al., 2021, arXiv:2106.01540) with the optimizer of its best rows, Apollo, which needs the package
# pytorch_optimizer: pip install 'leapformer-fairseq[apollo]'. The rest is as in luna.sh. Values of the optimizer are those
# of the released recipe. It clips the gradient of each parameter at 0.1; fairseq clips all of them together, here at 1,
# about what 200 parameters come to.
. "$(dirname "${BASH_SOURCE[0]}")/luna.sh"

train_options=(
    --arch leapformer_nmt_wmt14_tied
    --luna-length 32 --luna-projections tied --luna-activation elu1
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1
    --dropout 0.1 --attention-dropout 0.1 --activation-dropout 0.1
    --optimizer apollo --apollo-beta 0.9 --apollo-eps 1e-4 --apollo-warmup-updates 1000 --apollo-init-lr 1e-5
    --lr 0.1 --lr-scheduler manual --update2lr "{'0':0.1,'300000':0.01,'450000':0.001}"
    --clip-norm 1 --weight-decay 1e-8
    --max-tokens 8192 --batch-size 1024 --max-update 500000 --log-interval 100
)

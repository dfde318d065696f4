# The same experiment as in the released training script of LeaPformer: a larger model, trained for longer.
. "$(dirname "${BASH_SOURCE[0]}")/leapformer.sh"

# The last value of an option counts.
train_options+=(
    --arch leapformer_lm_wiki103_big # 1,024 wide, feed-forward 4,096
    --lr-period-updates 270000 --t-mult 2 --lr-shrink 0.75 --min-lr 1e-4 --max-update 250000
)

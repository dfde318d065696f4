# WikiText-2: a small language model, minutes on a core. Values are ours, the same for every attention.
attention="softmax relu elu cosformer rope leap" seeds="1 2 3"
jobs=$(nproc)
epochs=10
expect="leap relu cosformer" # from best to worst, the test column of the LeaPformer paper's table 4: 24.04, 24.16, 24.17

train_options=(
    --arch leapformer_lm_wiki2 # 4 layers, 128 wide, feed-forward 512, 4 heads
    --leap-factor 4 --cosformer-length 256
    # As in the paper's model of WikiText-103; twice as fast here as one softmax over all words.
    --adaptive-input --tie-adaptive-weights --adaptive-input-cutoff 2000,6000 --adaptive-softmax-cutoff 2000,6000
    --criterion adaptive_loss --ddp-backend legacy_ddp # fairseq refuses this loss with the other one
    --dropout 0.3
    --optimizer adam --adam-betas '(0.9,0.98)' --clip-norm 1
    --lr 3e-3 --lr-scheduler inverse_sqrt --warmup-updates 200
    --tokens-per-sample 256 --sample-break-mode none --max-tokens 2048 --log-interval 50
)
# Every word is predicted from at least 128 before it.
eval_options=(--tokens-per-sample 256 --context-window 128 --batch-size 16)

# The embedded text to speech corpus: a small model that two CPU cores train in minutes. Values are ours, the same for
# every attention. One voice that never varies and few updates: dropout only costs (validation L1 after 1,100 updates
# 0.65 with fairseq's defaults, 0.50 with little of it, 0.43 with almost none).
predictors=${predictors:-conv}

train_options=(
    --arch leapformer_tts_tiny # 2 + 2 layers, 128 wide, feed-forward 256, 2 heads
    --n-frames-per-step 4 --bce-pos-weight 5
    --dropout 0 --encoder-dropout 0 --postnet-dropout 0 --prenet-dropout 0.15
    --use-guided-attention-loss --guided-attention-loss-sigma 0.15
    --sentence-avg
    --optimizer adam --adam-betas '(0.9,0.98)' --clip-norm 5
    --lr 3e-3 --lr-scheduler polynomial_decay --warmup-updates 200 --total-num-update 3000
    --max-tokens 8000 --max-update 3000 --validate-interval 3 --log-interval 100
)
tts_options=(--max-steps 120)

# The embedded text to speech corpus: a small model that two CPU cores train in minutes. Values are ours.
train_options=(
    --arch leapformer_tts_tiny # 2 + 2 layers, 128 wide, feed-forward 256, 2 heads
    --n-frames-per-step 4 --bce-pos-weight 5
    --use-guided-attention-loss --guided-attention-loss-sigma 0.15
    --length-in-training true --sentence-avg
    --optimizer adam --adam-betas '(0.9,0.98)' --clip-norm 5
    --lr 2e-3 --lr-scheduler inverse_sqrt --warmup-updates 300
    --max-tokens 8000 --max-update 1500 --log-interval 100
)
tts_options=(--max-steps 120)

# Modular Linearized Attention (Agostinelli and Chen, 2023, arXiv:2304.08453), text to speech on LJSpeech. Values are
# the paper's (section 7.3); `ours` marks what it leaves open. A batch is max-tokens frames x GPUs; the paper trained on
# four. The post-net is 512 wide, as in the vanilla model.
predictors=${predictors:-ratio conv} # the final models speak with a length ratio of 1.25 (section 5.2, table 6)

train_options=(
    --arch leapformer_tts # 6 + 6 layers, 256 wide, feed-forward 1,024, 8 heads, 4 convolutions before and after
    --n-frames-per-step 4 --bce-pos-weight 5
    --dropout 0.1 --attention-dropout 0.1
    --length-ratio 1.25 # decoder steps for a phoneme, where the predictor is `ratio`
    --encoder-conv-kernel-size 5 --postnet-conv-kernel-size 5 # the paper says 4, which fairseq cannot build
    --optimizer adam --adam-betas '(0.9,0.98)' --clip-norm 5
    --lr 2e-3 --lr-scheduler inverse_sqrt --warmup-updates 4000
    --max-update 18000
    --max-tokens 30000 --update-freq 1 --log-interval 100     # ours: as in fairseq's recipe
)
tts_options=(--max-steps 6000) # the limit of the paper

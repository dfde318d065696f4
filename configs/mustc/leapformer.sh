# LeaPformer (Agostinelli et al., 2024, arXiv:2405.13046), simultaneous speech translation, for scripts/mustc.
# Values are those of the paper; `script` marks where the authors' released training scripts differ or say more.
#
# A batch is max-tokens frames x update-freq x GPUs. The paper trained on two V100 GPUs (appendix A.2), where an epoch of
# MuST-C's 400 h is about 800 translation batches, so 18,000 updates are some 22 epochs. With one GPU double the
# update-freq (--asr-options and --st-options "--update-freq 4").

vocab_size=10000 # unigram, one model per language

asr_options=(
    --arch leapformer_s2t # 12 encoder and 6 decoder layers, 256 wide, 8 heads, pre-norm, FFN 1024 (script: 2048)
    --leap-factor 4
    --share-decoder-input-output-embed                               # script
    --attention-dropout 0.1 --activation-dropout 0.1                 # script
    --criterion label_smoothed_cross_entropy --label-smoothing 0     # script: not given, which is 0
    --optimizer adam --adam-betas '(0.9,0.98)' --clip-norm 10
    --lr 2.5e-4 --lr-scheduler inverse_sqrt --warmup-updates 8000 --warmup-init-lr 1e-4
    --max-tokens 30000 --update-freq 2 --max-update 200000 --max-epoch 40
    --seed 1 --log-interval 50                                       # script
)

simul_options=(--arch leapformer_simulst --waitk-lagging 5 --fixed-pre-decision-ratio 9) # 360 ms a step
offline_options=(--arch leapformer_s2t) # with --offline, instead
length_options=(--length-predictor ratio --length-ratio 0.6) # of encoder states; MLA, where cosformer needs a length
st_options=(
    --leap-factor 4
    --share-decoder-input-output-embed                               # script
    --attention-dropout 0.1                                          # script: 0
    --criterion label_smoothed_cross_entropy --label-smoothing 0     # script: not given, which is 0
    --optimizer adam --adam-betas '(0.9,0.98)' --clip-norm 10
    --lr 6e-4                                                        # script: 3.3e-4
    --lr-scheduler inverse_sqrt --warmup-updates 6000 --warmup-init-lr 1e-4
    --max-tokens 45000 --update-freq 2 --max-epoch 40                # script
    --max-update 18000                                               # script: 100,000
    --seed 2 --log-interval 50                                       # script
)

average=10 # last epochs; ours, as in fairseq's speech recipes. Script: the single best checkpoint
k=3        # script: 5
eval_options=()

# The smaller model of table 9 of Modular Linearized Attention (Agostinelli and Chen, 2023, arXiv:2304.08453), for
# translation of whole recordings (--offline). All else is that of mla.sh.
. "$(dirname "${BASH_SOURCE[0]}")/mla.sh"

asr_options+=(--arch leapformer_s2t_mla_224) # 224 wide, 4 heads
offline_options+=(--arch leapformer_s2t_mla_224)
simul_options+=(--encoder-embed-dim 224 --encoder-attention-heads 4 --decoder-attention-heads 4) # as the recogniser

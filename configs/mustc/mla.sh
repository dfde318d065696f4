# Modular Linearized Attention (Agostinelli and Chen, 2023, arXiv:2304.08453), simultaneous speech translation, for
# scripts/mustc. What the paper leaves open (batch size, dropout, recognition pre-training) is that of the LeaPformer
# configuration.
#
# leapformer_s2t_mla has the 4 convolutions of kernel 4 that section 7.2.2 names; the 2 of kernel 3 of ESPnet, where the
# rest of the model is from, with --asr-options and --st-options "--conv-kernel-sizes 3,3".
. "$(dirname "${BASH_SOURCE[0]}")/leapformer.sh"

# The last value of an option counts.
asr_options+=(--arch leapformer_s2t_mla) # 6 and 6 layers, 256 wide, 8 heads
simul_options+=(--arch leapformer_simulst_mla)
offline_options+=(--arch leapformer_s2t_mla)
st_options+=(--warmup-updates 8000 --max-update 14000)
eval_options=(--pre-decision-ratio 7) # trained with 9, evaluated with 7: 280 ms a step

# Modular Linearized Attention (Agostinelli et al., 2023), simultaneous speech translation, for scripts/mustc.
# What the paper leaves open (batch size, dropout, recognition pre-training) is that of the LeaPformer configuration.
. "$(dirname "${BASH_SOURCE[0]}")/leapformer.sh"

# The last value of an option counts.
asr_options+=(--arch leapformer_s2t_mla) # 6 and 6 layers
simul_options+=(--arch leapformer_simulst_mla)
offline_options+=(--arch leapformer_s2t_mla)
st_options+=(--warmup-updates 8000 --max-update 14000)
eval_options=(--pre-decision-ratio 7) # trained with 9, evaluated with 7: 280 ms a step

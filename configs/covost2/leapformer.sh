# LeaPformer (Agostinelli et al., 2024, arXiv:2405.13046) on CoVoST 2 fr-en: no other values are given than for MuST-C. (The hours and
# epochs in the comments there are MuST-C's.)
. "$(dirname "${BASH_SOURCE[0]}")/../mustc/leapformer.sh"

# LeaPformer (Agostinelli et al., 2024, arXiv:2405.13046) on CoVoST 2 fr-en: the paper trains it like MuST-C.
. "$(dirname "${BASH_SOURCE[0]}")/../mustc/leapformer.sh"

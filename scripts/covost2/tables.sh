#!/usr/bin/env bash
# Tables of the LeaPformer paper on CoVoST 2 French-English. See --help.
set -euo pipefail
dataset=covost2 root_holds="validated.tsv, covost_v2.fr_en.tsv and clips" sets="test dev" tables="7"
. "$(dirname "$0")/../speech_tables.sh"
recipe prepare tables "$@"

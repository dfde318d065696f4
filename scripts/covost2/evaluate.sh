#!/usr/bin/env bash
# Averages checkpoints, then SimulEval and offline translation, on prepared CoVoST 2 French-English. See --help.
set -euo pipefail
dataset=covost2 root_holds="validated.tsv, covost_v2.fr_en.tsv and clips" sets="test dev"
. "$(dirname "$0")/../speech.sh"
recipe evaluate "$@"

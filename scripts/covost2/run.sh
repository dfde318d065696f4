#!/usr/bin/env bash
# All steps for CoVoST 2 French-English: prepare, pre-train, train, average, evaluate. See --help.
set -euo pipefail
dataset=covost2 root_holds="validated.tsv, covost_v2.fr_en.tsv and clips" sets="test dev"
. "$(dirname "$0")/../speech.sh"
recipe prepare train evaluate "$@"

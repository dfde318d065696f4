#!/usr/bin/env bash
# Simultaneous speech translation from scratch, in .venv: a corpus, training, evaluation, a report. See --help.
exec bash "$(dirname "${BASH_SOURCE[0]}")/recipe.sh" quickstart "$@"

#!/usr/bin/env bash
# What mechanisms remember: small trainings in minutes, in .venv. See --help.
COMMAND=probe
. "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh" "$@"

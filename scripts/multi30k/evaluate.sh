#!/usr/bin/env bash
# Translates and scores the test set of prepared Multi30k English-German, and writes the table. See --help.
set -euo pipefail
dataset=multi30k paper=small root_holds="{train,val,test_2016_flickr}.{en,de}"
. "$(dirname "$0")/../translation.sh"
recipe evaluate "$@"

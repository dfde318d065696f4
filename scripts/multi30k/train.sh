#!/usr/bin/env bash
# Translation on prepared Multi30k English-German. See --help.
set -euo pipefail
dataset=multi30k paper=small root_holds="{train,val,test_2016_flickr}.{en,de}"
. "$(dirname "$0")/../translation.sh"
recipe train "$@"

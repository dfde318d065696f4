#!/usr/bin/env bash
# Subwords and binary data of Multi30k English-German. See --help.
set -euo pipefail
dataset=multi30k paper=small root_holds="{train,val,test_2016_flickr}.{en,de}"
. "$(dirname "$0")/../translation.sh"
recipe prepare "$@"

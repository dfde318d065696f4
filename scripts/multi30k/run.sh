#!/usr/bin/env bash
# All steps for Multi30k English-German: prepare, train, evaluate. See --help.
set -euo pipefail
dataset=multi30k paper=small root_holds="{train,val,test_2016_flickr}.{en,de}"
. "$(dirname "$0")/../translation.sh"
recipe prepare train evaluate "$@"

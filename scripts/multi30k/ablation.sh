#!/usr/bin/env bash
# Which attention block can be linear: softmax, leap and relu in each block of Multi30k English-German. See --help.
set -euo pipefail
dataset=multi30k paper=small root_holds="{train,val,test_2016_flickr}.{en,de}"
. "$(dirname "$0")/../translation.sh"

value_options+=" --plans"
flag_options+=" --full --bounded"

usage() {
    cat <<HELP
usage: bash scripts/multi30k/ablation.sh --root DIR --out DIR [OPTIONS]

Trains softmax everywhere, and leap and relu in encoder self-attention, in decoder self-attention, in cross-attention,
and in all three: nine training runs with the same budget, sequentially, each translated and scored with its best
epoch by validation loss. OUT/epochsN/table.md, .json and .png are rewritten after every run. After Ctrl-C, repeat
the command to resume: finished runs are skipped, the interrupted one continues from its last epoch. Runs with fewer
epochs are continued, too: their first epochs are the same.

  --root DIR            the data, a folder that holds $root_holds
  --download            fetch what --root lacks
  --out DIR             prepared data and runs
  --full                instead: softmax, and leap and relu in decoder self-attention, for 16 epochs
  --bounded             instead: memories of bounded size, ABC in the decoder with a learned control (32 slots for the
                        source and 8 or 32 for the target), Linformer's and a random one; Luna everywhere, its packed
                        sequence of length 16 or 32 from the encoder, and learned ones in the decoder's layers or in all
  --epochs N            passes over the training data (default: 8; with --full 16)
  --plans LIST          train only these, in quotes, each ENCODER/DECODER/CROSS or one for all, options of a mechanism
                        after it as in luna:luna-length=16
  --seed N              training seed (default: 1)
  --paper, --average, --vocab-size, --workers, --train-options, --eval-options
                        as in scripts/multi30k/run.sh
  --dry-run             print the settings, do nothing
  --help                this text
HELP
}

defaults() {
    root='' out='' seed=1 workers=1 download='' full='' bounded='' plans='' epochs=8
    [[ " ${arguments[*]} " != *" --full "* ]] || epochs=16
}

# lengthen: start the new run from the finished one with fewer epochs and otherwise the same options, if there is one.
# No option of the configuration depends on the number of epochs, so that is the training from the start.
lengthen() {
    local run fewer shorter options
    run=$(run_folder) options=$(run_options)
    [[ ! -d $run ]] || return 0
    for ((fewer = epochs - 1; fewer; fewer--)); do
        shorter=$out/epochs$fewer/${run##*/}
        [[ -f $shorter/model/done ]] || continue
        [[ $(<"$shorter/options") == "${options/--max-epoch $epochs /--max-epoch $fewer }" ]] || continue
        say "$run goes on from $shorter"
        lock_run "$run" "$options"
        cp -r "$shorter/model" "$run/copy"
        rm "$run/copy/done"
        mv "$run/copy" "$run/model"
        return
    done
}

step_ablation() {
    local plan chosen abc=softmax/abc-X/abc-X:abc-slots all=(softmax) expected=()
    for plan in X/softmax/softmax softmax/X/softmax softmax/softmax/X X; do
        all+=("${plan//X/leap}" "${plan//X/relu}")
    done
    [[ ! $full ]] || all=(softmax softmax/leap/softmax softmax/relu/softmax)
    if [[ $bounded ]]; then
        all=("${abc//X/mlp}=32/8/32" "${abc//X/mlp}=32" "${abc//X/linformer}=32/8/32" "${abc//X/random}=32/8/32"
            luna:luna-length=16 luna:luna-length=32 luna:luna-length=16:luna-packed=learned
            luna:luna-length=16:luna-packed=non-contextual)
        # The papers' orders: a learned control is better than a random one and Linformer's (ABC, table 4), a packed
        # sequence that comes from the source better than one that every layer learns (Luna, table 6).
        expected=(--expect "${all[0]}" "${all[3]}" --expect "${all[0]}" "${all[2]}" --expect "${all[4]}" "${all[7]}")
        all=(softmax "${all[@]}")
    fi
    read -ra chosen <<<"${plans:-${all[*]}}"
    runs=$out/epochs$epochs
    table_options=(--title "Multi30k $pair: linear attention by block, at most $epochs epochs" --rows "${all[@]}"
        "${expected[@]}")
    for attention in "${chosen[@]}"; do
        lengthen
        step_train
        step_evaluate
    done
}

recipe prepare ablation "$@"

#!/usr/bin/env bash
# Simultaneous speech translation from scratch: builds a corpus, trains, evaluates, reports. See --help.
set -euo pipefail
. "$(dirname "$0")/common.sh"

usage() {
    cat <<'HELP'
usage: bash scripts/quickstart.sh [OPTIONS]

Sets up .venv, generates a small English-German speech corpus, pre-trains an encoder on recognition, trains a wait-k
translation model, evaluates it with SimulEval for several k and offline, and writes report.md, scores.json, curve.png.
Run it again to resume, or with another attention and the same --out to compare.

  --attention PLAN  mechanism or plan for all attention blocks, or ENCODER/DECODER/CROSS; options of the model follow
                    after colons (default: leap:encoder-chunk-ms=280, whose encoder reads speech in chunks, each frame
                    once). leap alone: the encoder sees the whole source and is rerun at every step.
                    leap:encoder-causal: the encoder sees no later frame
  --softmax         also train softmax, whose encoder sees the whole source, in parallel on another core
  --k LIST          k of wait-k to evaluate, in quotes (default: "1 3 5 9")
  --train-k RANGE   k of training: one number, or a range to sample from for every batch (default: 1-9)
  --seed N          seed of the corpus and of training (default: 1)
  --out DIR         results (default: results/quickstart)
  --fast            about two minutes: a tiny corpus and few updates; the scores mean nothing
  --help            this text
HELP
}

attention=leap:encoder-chunk-ms=280 baseline= ks="1 3 5 9" train_k=1-9 seed=1 out=results/quickstart fast=
while (($#)); do
    case $1 in
        --attention) attention=${2:?--attention needs a PLAN} && shift ;;
        --softmax) baseline=softmax ;;
        --k) ks=${2:?--k needs a list of numbers} && shift ;;
        --train-k) train_k=${2:?--train-k needs a number or a range} && shift ;;
        --seed) seed=${2:?--seed needs a number} && shift ;;
        --out) out=${2:?--out needs a folder} && shift ;;
        --fast) fast=1 ;;
        --help | -h) usage && exit ;;
        *) fail "unknown option $1; see --help" ;;
    esac
    shift
done
for k in $ks; do
    [[ $k =~ ^[1-9][0-9]*$ ]] || fail "--k $k: k is a number of steps, at least 1"
done
[[ $train_k =~ ^[1-9][0-9]*(-[1-9][0-9]*)?$ ]] || fail "--train-k $train_k: give a number from 1, or a range as in 1-9"
other_k= # a value other than the default is part of a run's name
[[ $train_k == 1-9 ]] || other_k=$train_k
[[ $seed =~ ^[0-9]+$ ]] || fail "--seed $seed: give a whole number"

sizes= asr_updates=1500 st_updates=3200 sentences=100
if [[ $fast ]]; then
    sizes="--train 60 --dev 8 --test 8 --vocab-size 120" asr_updates=80 st_updates=80 sentences=3
fi
systems=("$attention")
[[ -z $baseline || $attention == "$baseline" ]] || systems+=("$baseline")
# At most 10 tokens per second of audio, plus 10, to stop a model that loops.
length=(--max-len-a 0.1 --max-len-b 10)
# One thread per training run: these models are too small to benefit from two.
export OMP_NUM_THREADS=1

# folder ATTENTION: the folder of its translation model. recogniser ATTENTION: that of its pre-trained encoder.
folder() {
    echo "$out/$(file_name "$1")${other_k:+-k$other_k}"
}

recogniser() {
    echo "$out/asr-$(file_name "$(encoder_of "$1")")"
}

# train_task TASK SAVE UPDATES OPTIONS...: small batches and a learning rate that decays to zero give the best result in a few minutes.
train_task() {
    local task=$1 save=$2 updates=$3
    once "$save" train_speech "$data" "config_$task.yaml" "$task" "$save" \
        --cosformer-length 40 --seed "$seed" --max-tokens 4000 --dropout 0.05 --label-smoothing 0.1 \
        --optimizer adam --adam-betas '(0.9,0.98)' --clip-norm 10 --lr-scheduler polynomial_decay \
        --warmup-updates 100 --total-num-update "$updates" --max-update "$updates" \
        --no-epoch-checkpoints --save-interval-updates 250 --keep-interval-updates 1 --log-interval 50 "${@:4}"
}

# train_recogniser ENCODER: only its encoder is used later, so plans with the same encoder share it.
train_recogniser() {
    say "pre-training the encoder on speech recognition ($asr_updates updates)"
    train_task asr "$(recogniser "$1")" "$asr_updates" $(plan_flags "$(plan_of "$1")/softmax") $(options_of "$1") \
        --arch leapformer_s2t_tiny --decoder-layers 1 --lr 3e-3 \
        --criterion label_smoothed_cross_entropy_with_ctc --ctc-weight 1
}

# train_system ATTENTION: translation, initialised with the recogniser's encoder.
train_system() {
    say "training wait-k translation ($st_updates updates)"
    train_task st "$(folder "$1")/st" "$st_updates" $(plan_flags "$1") --arch leapformer_simulst_tiny --lr 2e-3 \
        --waitk-lagging "$train_k" --fixed-pre-decision-ratio 7 \
        --load-pretrained-encoder-from "$(recogniser "$1")/checkpoint_last.pt" --criterion label_smoothed_cross_entropy
}

# evaluate_system ATTENTION: sequentially, since time is measured.
evaluate_system() {
    local run k
    run=$(folder "$1")
    for k in $ks; do
        say "$1: simultaneous translation with k = $k"
        once "$run/k$k" simul_eval "$data" config_st.yaml test "$run/st/checkpoint_last.pt" "$k" "$run/k$k" \
            --end-index "$sentences" "${length[@]}"
    done
    say "$1: offline translation, beam 5"
    once "$run/offline" offline_eval "$data" config_st.yaml test "$run/st/checkpoint_last.pt" "$run/offline" \
        --beam 5 "${length[@]}"
}

activate
mkdir -p "$out"
out=$(cd "$out" && pwd)
data=$out/corpus
encoders=()
for system in "${systems[@]}"; do
    trained="--seed $seed${fast:+ --fast}" encoder=$(encoder_of "$system")
    lock_run "$(recogniser "$system")" "--encoder $encoder $trained"
    lock_run "$(folder "$system")" "--attention $system $trained${other_k:+ --train-k $other_k}"
    [[ " ${encoders[*]} " == *" $encoder "* ]] || encoders+=("$encoder")
done

say "speech corpus in $data"
leapformer corpus --out "$data" --seed "$seed" $sizes

together train_recogniser "${encoders[@]}"
together train_system "${systems[@]}"
for system in "${systems[@]}"; do
    evaluate_system "$system"
done

say "report"
leapformer report "$out"
say "done: $out/report.md, $out/scores.json, $out/curve.png"

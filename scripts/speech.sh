# The steps of the recipes scripts/mustc and scripts/covost2. A script sets its data set and sources this:
#
#   dataset=mustc root_holds="en-de/data" sets="tst-COMMON tst-HE"
#   . "$(dirname "$0")/../speech.sh"
#   recipe prepare train evaluate "$@"
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

paper=leapformer
known_sets=${sets:-}
value_options="--root --out --attention --k --sets --vocab-size --workers --average --longest"
list_options="--asr-options --st-options --eval-options"
flag_options="--offline"

usage() {
    cat <<HELP
usage: bash scripts/$dataset/$(basename "$0") --out DIR [OPTIONS]

  --root DIR          the downloaded data, the folder that holds $root_holds (only to prepare)
  --out DIR           prepared data and runs; repeat the command to resume
  --paper NAME        hyperparameters: $(papers)
  --attention PLAN    mechanism or plan for all attention blocks, or ENCODER/DECODER/CROSS (default: leap);
                      options after colons, as in luna:luna-length=32
  --k LIST            k of wait-k to evaluate, in quotes (default: the paper's)
  --sets LIST         test sets to evaluate, in quotes (default: ${sets%% *}; there are $sets)
  --longest N         translate instead the N longest utterances of the development set, with at most 10 tokens after
                      their end, as for table 10 of the LeaPformer paper, which does not say how many it took
  --vocab-size N      subwords per language (default: the paper's)
  --workers N         processes that prepare the data (default: 1)
  --average N         translate with the average of the last N epochs (default: 10)
  --offline           translate whole recordings instead of simultaneous translation; cosformer in a decoder block
                      then predicts the target length (--st-options "--length-predictor ..." for another predictor)
  --asr-options TEXT  more options for recognition pre-training, e.g. "--max-update 1000 --fp16"
  --st-options TEXT   more options for translation training
  --eval-options TEXT more options for SimulEval, e.g. "--end-index 100"
  --dry-run           print the settings, do nothing
  --help              this text

If an option is repeated, the last value counts, so all of configs/$dataset/NAME.sh can be overridden.
HELP
}

defaults() {
    root='' out='' attention=leap workers=1 sets=${sets%% *} offline='' longest=''
}

finish_options() {
    local lagging set
    whole_number --average "$average"
    for lagging in $k; do
        whole_number --k "$lagging"
    done
    for set in $sets; do
        one_of --sets "$set" "$known_sets"
    done
    [[ $longest ]] || return 0
    whole_number --longest "$longest"
    sets=dev-long eval_options+=(--max-after-read 10)
}

need_data() {
    need_dir "--root (the folder that holds $root_holds)" "$root"
}

# places: set the folders of the recogniser and of this run.
places() {
    asr=$out/asr-$(file_name "$(encoder_of "$attention")")
    run=$out/$(file_name "$attention")${offline:+-offline}
}

step_prepare() {
    say "preparing $dataset in $data"
    leapformer prepare "$dataset" "$root" --out "$data" --vocab-size "$vocab_size" --workers "$workers"
}

step_train() {
    places
    [[ -f $data/config_st.yaml ]] || fail "$data holds no prepared data; run scripts/$dataset/prepare.sh first"
    # Only the encoder is used later: its mechanism is that of the translation model, and plans with the same encoder
    # share the pre-training. The decoder is softmax, as in the released scripts.
    say "pre-training the encoder on speech recognition in $asr"
    local plan
    plan="$(plan_flags "$(plan_of "$(encoder_of "$attention")")/softmax")$(options_of "$attention")"
    lock_run "$asr" "$plan ${asr_options[*]}"
    once "$asr/model" train_speech "$data" config_asr.yaml asr "$asr/model" $plan --keep-last-epochs 1 \
        "${asr_options[@]}"

    say "training translation in $run"
    plan=$(plan_flags "$attention")
    if [[ ! $offline ]]; then
        plan+=" ${simul_options[*]}"
        ! needs_length "$attention" || plan+=" --length-predictor oracle" # for training and perplexity alone
    else
        plan+=" ${offline_options[*]}"
        ! needs_length "$attention" || plan+=" ${length_options[*]}"
    fi
    lock_run "$run" "$plan ${st_options[*]}"
    once "$run/model" train_speech "$data" config_st.yaml st "$run/model" $plan --keep-last-epochs "$average" \
        --load-pretrained-encoder-from "$asr/model/checkpoint_best.pt" "${st_options[@]}"
}

# long_dev: the longest utterances of the development set, as lists for simulation and as a manifest.
long_dev() {
    local part
    for part in source target; do
        paste <(cut -f3 "$data/dev_st.tsv" | tail -n +2) "$data/dev.$part" | sort -snr | head -n "$longest" |
            cut -f2- >"$data/dev-long.$part"
    done
    { head -n 1 "$data/dev_st.tsv" && tail -n +2 "$data/dev_st.tsv" | sort -snrt $'\t' -k3,3 | head -n "$longest"; } \
        >"$data/dev-long_st.tsv"
}

# forced_eval CHECKPOINT OUT: perplexity of the development set given the references.
forced_eval() {
    logged "$2/validate.log" leapformer validate "$data" --path "$1" --task speech_to_text --config-yaml config_st.yaml \
        --valid-subset dev_st --max-tokens 20000 --num-workers 1 --required-batch-size-multiple 1 --log-format simple &&
        leapformer score "$2/validate.log" --examples "$data/dev.target" --checkpoint "$1" --json "$2/scores.json"
}

step_evaluate() {
    places
    [[ -f $run/model/done ]] || fail "$run/model holds no finished training; run scripts/$dataset/train.sh first"
    local checkpoint=$run/model/average$average.pt set results lagging
    [[ ! $longest ]] || long_dev
    [[ -f $checkpoint ]] || leapformer average --inputs "$run/model" --last "$average" --output "$checkpoint"
    say "perplexity of the development set"
    once "$run/teacher-forced" forced_eval "$checkpoint" "$run/teacher-forced"
    if [[ ! $offline ]] && needs_length "$attention"; then
        say "$attention knows no target length while translating, so there is no translation"
        sets=''
    fi
    for set in $sets; do
        results=$run/$set
        lock_run "$results" "--average $average ${eval_options[*]}"
        [[ ! $offline ]] || k=''
        for lagging in $k; do
            say "$set: simultaneous translation with k = $lagging"
            once "$results/k$lagging" simul_eval "$data" config_st.yaml "$set" "$checkpoint" "$lagging" \
                "$results/k$lagging" "${eval_options[@]}"
        done
        say "$set: offline translation, beam 5"
        once "$results/offline" offline_eval "$data" config_st.yaml "$set" "$checkpoint" "$results/offline" \
            --beam 5
    done
    say "report"
    leapformer report "$out"
    say "done: $out/report.md, $out/scores.json, $out/curve.png; details in $run/SET/"
}

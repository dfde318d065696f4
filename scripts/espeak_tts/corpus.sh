# This recipe synthesises its data: nothing to provide or download.
value_options=${value_options/--root /}
value_options=${value_options/ --workers --textgrids/ --train --dev --test}
flag_options=""

usage_of_data() {
    cat <<HELP
  --train N, --dev N, --test N  sentences (default: 3000, 60, 100)
HELP
}

defaults() {
    out='' attention=leap seed=1 pictures=2 train=3000 dev=60 test=100
}

need_data() {
    :
}

step_prepare() {
    say "synthesising speech in $data"
    leapformer corpus --task tts --out "$data" --train "$train" --dev "$dev" --test "$test"
}

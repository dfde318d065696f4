# Shared by all recipes. A recipe's script sets its data set and sources the steps for its task (speech.sh, translation.sh,
# lm.sh, mlm.sh, glue.sh, tts.sh), which source this and define:
#
#   value_options, list_options, flag_options   its options; a list option appends to the array of its name
#   usage, defaults, need_data, finish_options  functions: --help, default values, checks of --root, final checks
#   step_NAME                                   a function for each step
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# recipe STEP... OPTIONS...: read the options, set up the environment, and run the steps: prepare, train, evaluate.
# --dry-run shows the options instead.
recipe() {
    local steps=()
    while (($#)) && [[ $1 != -* ]]; do
        steps+=("$1")
        shift
    done
    read_options "$@"
    [[ ! $dry_run ]] || { show_options "${steps[@]}" && exit; }
    [[ ${steps[0]} != prepare ]] || need_data
    activate
    mkdir -p "$out"
    out=$(cd "$out" && pwd)
    data=$out/data
    for step in "${steps[@]}"; do
        "step_$step"
    done
}

# show_options STEP...: what the configuration and the command line say.
show_options() {
    local option name options=()
    echo "scripts/$dataset: $* with configs/$dataset/$paper.sh"
    for option in $value_options; do
        name=${option#--}
        name=${name//-/_}
        [[ ! ${!name:-} ]] || echo "    $option ${!name}"
    done
    for name in $(compgen -A arrayvar | grep _options$); do
        local -n list=$name
        [[ $name == options || ${#list[@]} == 0 ]] || echo "    $name: ${list[*]}"
        unset -n list
    done
}

# read_options OPTIONS...: set the variables of the same names.
read_options() {
    local name more arguments=("$@")
    flag_options+=" --dry-run" dry_run=''
    while (($#)); do
        [[ $1 != --help && $1 != -h ]] || { usage && exit; }
        [[ $1 != --paper ]] || paper=${2:?--paper needs a name}
        shift
    done
    [[ -f $ROOT/configs/$dataset/$paper.sh ]] || fail "--paper $paper: there is no configs/$dataset/$paper.sh"
    . "$ROOT/configs/$dataset/$paper.sh"
    defaults
    set -- "${arguments[@]}"
    while (($#)); do
        name=${1#--}
        name=${name//-/_}
        if [[ " $flag_options " == *" $1 "* ]]; then
            printf -v "$name" %s 1
            shift
            continue
        fi
        [[ " --paper $value_options $list_options " == *" $1 "* ]] || fail "unknown option $1; see --help"
        (($# > 1)) || fail "$1 needs a value; see --help"
        if [[ " $list_options " == *" $1 "* ]]; then
            read -ra more <<<"$2"
            local -n list=$name
            list+=("${more[@]}")
            unset -n list
        elif [[ $1 != --paper ]]; then
            printf -v "$name" %s "$2"
        fi
        shift 2
    done
    [[ $out ]] || fail "no --out given; see --help"
    finish_options
}

# papers: the configurations of this data set.
papers() {
    local names
    names=$(cd "$ROOT/configs/$dataset" && echo *.sh)
    echo "${names//.sh/} (default: $paper)"
}

# whole_number OPTION VALUE [LEAST]: stop with a clear message unless VALUE is a whole number of at least LEAST (default 1).
whole_number() {
    [[ $2 =~ ^[0-9]+$ && $2 -ge ${3:-1} ]] || fail "$1 $2: give a whole number from ${3:-1}"
}

# positive OPTION VALUE: stop with a clear message unless VALUE is a number above 0.
positive() {
    [[ $2 =~ ^[0-9]*\.?[0-9]+$ && ! $2 =~ ^[0.]+$ ]] || fail "$1 $2: give a number above 0"
}

# one_of OPTION VALUE CHOICES: stop with a clear message unless VALUE is one of these.
one_of() {
    [[ " $3 " == *" $2 "* ]] || fail "$1 $2: choose from ${3// /, }"
}

# need_root NAME: stop unless --root, called NAME, is a folder, or --download is given with a folder to fill.
need_root() {
    [[ $download ]] || need_dir "$1" "$root"
    [[ $root ]] || fail "--download needs --root, the folder to put the data into; see --help"
}

# need_step DIR STEP: stop unless the step that leaves DIR/done is finished.
need_step() {
    [[ -f $1/done ]] || fail "$1 is not finished; run scripts/$dataset/$2.sh first"
}

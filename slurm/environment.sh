# shellcheck shell=bash
# Sourced by job.sh and rank.sh: the site's settings, and its Python that runs vLLM.

python=() site_serve_args=() site_sbatch=()
set +u                                  # as in the shell that read the file before sbatch; behind || no error ends it either
# shellcheck source=site.sh
source "${WORKSHOP_SITE:-$WORKSHOP_SLURM/site.sh}" || {
    printf '[workshop] %s\n' "refused: ${WORKSHOP_SITE:-$WORKSHOP_SLURM/site.sh} ends with an error on $(hostname)." \
        "remedy: Its last line has to succeed; sites/ in slurm/ has examples." >&2
    exit 3
}
set -u
export WORKSHOP_SCRATCH=${WORKSHOP_SCRATCH:-/tmp}

set_python_path() {                     # what job.sh offers first; an entry that is no whole path is the current folder
    local entry entries path=${WORKSHOP_PACKAGE:-}
    IFS=: read -ra entries <<<"${PYTHONPATH:-}"
    for entry in ${entries[@]+"${entries[@]}"}; do
        if [[ $entry = /* ]] && [ "$entry" != "${WORKSHOP_PACKAGE:-}" ]; then
            path=${path:+$path:}$entry
        fi
    done
    if [ "$path" ]; then
        export PYTHONPATH=$path
    else
        unset PYTHONPATH
    fi
    export PYTHONSAFEPATH=1             # Python runs no file of the folder from which sbatch was called
    unset PYTHONDONTWRITEBYTECODE       # else each process of each start compiles all of vLLM anew
}
set_python_path
environment_said=''                     # while the site's own function runs: the file with its words

load_environment() {                    # its words go to the file $1; an error in it ends the script (see environment_refusal)
    environment_said=$1
    exec 3>&2 2>"$environment_said"
    set +u                              # conda's and modules' own scripts use unset variables
    workshop_environment
    set_python_path                     # modules and conda may have changed it
    "${python[@]:-false}" -c ''
    set -u
    exec 2>&3 3>&-
    cat "$environment_said" >&2
    rm -f "$environment_said"
    environment_said=''
}

environment_refusal() {                 # for an EXIT trap: sets `refused` and `remedy` where the function failed
    exec 2>&3 3>&-
    cat "$environment_said" >&2
    local words
    words=$(sed -n '$ { s/^.*: line [0-9]*: //; p; }' "$environment_said")
    [ ${#python[@]} != 0 ] || words=${words:-it sets no \`python\`}
    rm -f "$environment_said"
    environment_said=''
    # shellcheck disable=SC2034         # read by job.sh and rank.sh
    refused="workshop_environment fails on $(hostname): ${words:-its Python does not run}"
    # shellcheck disable=SC2034
    remedy="Edit it in ${WORKSHOP_SITE:-$WORKSHOP_SLURM/site.sh}; slurm/sites/ has examples. Try it on a node: srun --pty bash."
}

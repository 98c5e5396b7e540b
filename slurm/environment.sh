# shellcheck shell=bash
# Sourced by job.sh on the job's first node and by node.sh on each: site.sh, and its Python that runs vLLM.

say() { printf '[workshop] %s\n' "$@"; }
fail() {                                # sentence, remedy; srun may lose a node's last words: a file of the job keeps them
    say "refused: $1" "remedy: $2" | tee -a "${reasons:-/dev/null}" >&2
    exit 3
}

python=() site_serve_args=() site_sbatch=()
site=${WORKSHOP_SITE:-$WORKSHOP_SLURM/site.sh}
set +u                                  # as in a login shell; behind || no error in the file ends it either
# shellcheck source=site.sh
source "$site" || fail "$site ends with an error on $(hostname)." "Its last line has to succeed; slurm/sites/ has examples."
set -u
export WORKSHOP_SCRATCH=${WORKSHOP_SCRATCH:-/tmp} PYTHONSAFEPATH=1 PYTHONPATH  # safe: no file of the current folder is run
unset PYTHONDONTWRITEBYTECODE           # else each process of each start compiles all of vLLM anew

set_python_path() {                     # the workshop's package first; an entry that is no whole path is the current folder
    PYTHONPATH=$(tr : '\n' <<<"${package:-}:${PYTHONPATH:-}" | awk '/^\// && !seen[$0]++' | paste -sd :)
}
load_environment() {                    # $1: a file for the function's words while it runs; what fails in it is the reason
    complaints=$1
    exec 3>&2 2>"$complaints"
    trap refuse_environment EXIT
    set_python_path
    set +u                              # conda's and modules' own scripts use unset variables
    workshop_environment
    set_python_path                     # modules and conda may have changed it
    "${python[@]:-false}" -c ''
    set -u
    trap - EXIT
    exec 2>&3 3>&-
    cat "$complaints" >&2
    rm -f "$complaints"
}
refuse_environment() {
    exec 2>&3 3>&-
    local last
    last=$(sed -n '$ { s/^.*: line [0-9]*: //; p; }' "$complaints")
    [ ${#python[@]} != 0 ] || last=${last:-it sets no \`python\`}
    cat "$complaints" >&2
    rm -f "$complaints"
    fail "workshop_environment fails on $(hostname): ${last:-its Python does not run}" \
         "Edit it in $site; slurm/sites/ has examples. Try it on a node: srun --pty bash."
}

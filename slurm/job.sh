# shellcheck shell=bash disable=SC2154,SC2218  # slurm_folder, min_gpu_gib: set by the .sbatch file that sources this
# Sourced by the .sbatch files at their top, on the job's first node: settings of the site, the number of GPUs, and
# `supervise srun …`, which starts the engine. What is to be done is decided by workshop/servers/slurm/job/supervisor.py, which may run
# in an image without SLURM's commands: it asks this shell for them, a line each, and is told of signals and of ends.

export PATH HOME=${HOME:-~} WORKSHOP_SLURM=$slurm_folder WORKSHOP_SITE=${WORKSHOP_SITE:-}  # --export=NONE passes on nothing
WORKSHOP_ROOT=$(cd "$slurm_folder/.." && pwd)
export WORKSHOP_ROOT SLURM_EXPORT_ENV=ALL SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-1}}  # for srun
unset PYTHONPATH PYTHONHOME SLURM_CLUSTERS SLURM_CPUS_PER_GPU   # another Python's modules; srun refuses the last
# shellcheck source=environment.sh
source "$slurm_folder/environment.sh"

job=$SLURM_JOB_ID                       # one task of an array has the whole array's number: 7_2 means it alone
[ -z "${SLURM_ARRAY_TASK_ID:-}" ] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
folder=$SLURM_SUBMIT_DIR/${SLURM_JOB_NAME}_$job
export WORKSHOP_JOB=$folder/job_$job.json       # what job.py tells the nodes
package=$folder/python batch=()         # a script may set `batch`: what is done once the server answers

# "4", "h100:4", "h100" (one), "gpu:h100:4(S:0-1)", "h100:2,a100:2"; sites with --gres, or with none, say it elsewhere.
for gpus_per_node in "${SLURM_GPUS_PER_NODE:-}" "${SLURM_GPUS_ON_NODE:-}" "${WORKSHOP_GPUS_PER_NODE:-}" \
    "$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU' || true)"; do
    gpus_per_node=$(($(sed -E 's/\([^)]*\)//g; s/none//; s/[^,]*[:=]([0-9]+)/\1/g; s/[A-Za-z][^,]*/1/g; s/,/+/g' <<<"$gpus_per_node")))
    [ "$gpus_per_node" = 0 ] || break
done

supervise() {                           # COMMAND: starts the engine on every node; does not return
    if [[ $folder = *:* || $SLURM_JOB_NAME = */* ]] || ! mkdir -p "$package"; then
        fail "The folder $folder cannot be made, or has a colon." "Call sbatch from a folder that you may write; a job's name has no / or :."
    fi
    ln -sfn "$WORKSHOP_ROOT/workshop" "$WORKSHOP_ROOT/planner/inference_planner" "$package"
    exec >>"$folder/output_$job.out" 2>>"$folder/error_$job.out"
    local number=$((${SLURM_RESTART_COUNT:-0} + 1)) request code=0
    say "start $number of job $job" >&2
    say "start $number of job $job: $SLURM_JOB_NAME on $SLURM_JOB_NODELIST ($SLURM_NNODES nodes × $gpus_per_node GPUs)"
    fail() { say "refused: $1" "remedy: $2" >&2; say "ended: $1" "remedy: $2" | tee -a /dev/stderr; clear_folder; exit 3; }
    load_environment "$folder/environment.out"
    trap '' PIPE
    coproc head {                       # may be sent TERM with this shell, which tells it
        trap '' TERM INT USR1
        exec "${python[@]}" -m workshop.servers.slurm.job.supervisor "$gpus_per_node" "${min_gpu_gib:-0}" "${#batch[@]}" ${batch[@]+"${batch[@]}"} "$@"
    }
    local pid=$head_PID to from
    exec {to}>&"${head[1]}" {from}<&"${head[0]}"
    trap 'echo "signal TERM" >&"$to"' TERM INT
    trap 'echo "signal USR1" >&"$to"' USR1
    while IFS=$'\t' read -r -u "$from" -a request; do
        case ${request[0]} in
            start) { trap : TERM INT USR1; "$@" || code=$?; echo "engine $code" >&"$to"; } & ;;
            run) ( trap '' TERM INT USR1; "${request[@]:1}" </dev/null >"$folder/answer" 2>&1 && echo "answer 0" || echo "answer $?" ) >&"$to" ;;
        esac
    done
    while true; do                      # a signal ends a wait early
        wait "$pid" && code=0 || code=$?
        kill -0 "$pid" 2>/dev/null || break
    done
    clear_folder
    exit "$code"
}
clear_folder() {
    local early=$SLURM_SUBMIT_DIR/${SLURM_JOB_NAME}_$SLURM_JOB_ID.out     # SLURM's own words, if it had any
    [ ! -e "$early" ] || { cat "$early" >&2; rm -f "$early"; }
    rm -rf "$package" "$folder/answer"
}

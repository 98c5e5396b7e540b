# shellcheck shell=bash disable=SC2154   # model, tensor_parallel_size, …: set by the .sbatch file that sources this
# What the .sbatch files share: sourced by each of them at its top, on the job's first node ("head").
# Order of a job: open_logs, announce_server, start_engine, wait_until_ready, wait_until_end; `finish` always.

export PATH HOME=${HOME:-~}                     # after `sbatch --export=NONE` neither is in the environment
export WORKSHOP_SLURM=$slurm_folder
WORKSHOP_ROOT=$(cd "$slurm_folder/.." && pwd)
export WORKSHOP_ROOT
unset PYTHONPATH PYTHONHOME WORKSHOP_PACKAGE    # of the shell that called sbatch: modules of another Python; site.sh can set it
unset SLURM_CLUSTERS                            # the commands below ask the job's own cluster
# shellcheck source=environment.sh
source "$slurm_folder/environment.sh"

count_gpus() {                                  # "4", "h100:4", "h100" (one), "gpu:h100:4(S:0-1)", "h100:2,a100:2"
    local kinds part number total=0
    kinds=$(sed -E 's/\([^)]*\)//g; s/,/ /g' <<<"$1")
    for part in $kinds; do
        number=${part##*[:=]}
        [[ $number =~ ^[0-9]+$ ]] || number=1
        [ "$part" = none ] || total=$((total + 10#$number))
    done
    echo "$total"
}
# Sites with --gres, or with none, say it otherwise.
for said in "${SLURM_GPUS_PER_NODE:-}" "${SLURM_GPUS_ON_NODE:-}" "${WORKSHOP_GPUS_PER_NODE:-}"; do
    gpus_per_node=$(count_gpus "$said")
    [ "$gpus_per_node" = 0 ] || break
done
[ "$gpus_per_node" != 0 ] || gpus_per_node=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU' || true)
job=$SLURM_JOB_ID
if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then     # one task of an array has the whole array's number: 7_2 means it alone
    job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
fi
folder=$SLURM_SUBMIT_DIR/${SLURM_JOB_NAME}_$job
export WORKSHOP_REASONS=$folder/reasons_$job.out  # while the job runs: why a part of it refused or ended
early_log=$SLURM_SUBMIT_DIR/${SLURM_JOB_NAME}_$SLURM_JOB_ID.out
ended_by=error                                 # done, ready-budget, cancelled, time-limit, requeue, engine: for `finish`
refused='' remedy=''
engine='' watch='' ask_every_s=0.1
requeue_wanted=10                              # the exit code of `job end`: the job is to go back into the queue

say() { echo "[workshop] $*"; }

fail() {                                       # sentence, remedy
    refused=$1 remedy=$2
    say "refused: $refused" >&2
    say "remedy: $remedy" >&2
    exit 3
}

open_logs() {
    trap finish EXIT
    trap 'ended_by=cancelled; exit 143' TERM INT
    trap 'ended_by=time-limit; exit 124' USR1
    if [[ $SLURM_JOB_NAME = */* ]] || ! mkdir -p "$folder"; then
        fail "The folder $folder cannot be made." "Call sbatch from a folder that you may write; a job's name has no /."
    fi
    exec >>"$folder/output_$job.out" 2>>"$folder/error_$job.out"
    rm -f "$WORKSHOP_REASONS"                  # a job may start again; follow.py reads what stands after its last start
    local start="start $((${SLURM_RESTART_COUNT:-0} + 1)) of job $job"
    say "$start" >&2
    say "$start: $SLURM_JOB_NAME on $SLURM_JOB_NODELIST ($SLURM_NNODES nodes × $gpus_per_node GPUs)"
    if [ -z "$model" ]; then
        fail "WORKSHOP_MODELS is not set, so nobody knows where the models are." \
             "Set it in slurm/site.sh: a folder that every node sees, such as your project's."
    fi
    if [ "$gpus_per_node" = 0 ]; then
        fail "Neither SLURM nor the driver says that this job has GPUs." \
             "Ask for some: --gpus-per-node, or as slurm/site.sh explains; or set WORKSHOP_GPUS_PER_NODE there."
    fi
    offer_package
    load_environment "$folder/environment_$job.out"
}

# Of a checkout Python sees the package alone, since the engine's environment need not have it installed: other files in
# the checkout's folder, where sbatch is often called, could stand in for modules of Python.
offer_package() {
    [ -d "$WORKSHOP_ROOT/workshop" ] || return 0
    if [[ $folder = *:* ]]; then
        fail "The job's folder $folder has a colon, by which Python parts the folders of its path." \
             "Call sbatch from another folder, with a job's name without a colon."
    fi
    export WORKSHOP_PACKAGE=$folder/python
    mkdir -p "$WORKSHOP_PACKAGE"
    ln -sfn "$WORKSHOP_ROOT/workshop" "$WORKSHOP_PACKAGE/workshop"
    ln -sfn "$WORKSHOP_ROOT/planner/inference_planner" "$WORKSHOP_PACKAGE/inference_planner"
}

announce_server() {
    served=$(basename "$model")                                # in a cache of the Hub: the model's name, not its hash
    [[ ! $model =~ models--[^/]*--([^/]+)/snapshots/[^/]+/?$ ]] || served=${BASH_REMATCH[1]}
    served=${WORKSHOP_SERVED_MODEL_NAME:-$served}
    export WORKSHOP_TP=$tensor_parallel_size WORKSHOP_PP=$pipeline_parallel_size
    export WORKSHOP_GPUS_PER_NODE=$gpus_per_node WORKSHOP_MIN_GPU_GIB=$min_gpu_gib
    local number
    for number in "$tensor_parallel_size" "$pipeline_parallel_size" "${min_gpu_gib%.*}"; do
        [[ $number =~ ^[0-9]{1,5}$ ]] || fail "${number:0:40} is no whole number." \
            "Give one: WORKSHOP_TP and WORKSHOP_PP in GPUs, WORKSHOP_MIN_GPU_GIB in GiB."
    done
    if [ $((tensor_parallel_size * pipeline_parallel_size)) != $((gpus_per_node * SLURM_NNODES)) ]; then
        fail "TP $tensor_parallel_size × PP $pipeline_parallel_size needs $((tensor_parallel_size * pipeline_parallel_size)) GPUs, and the job has $SLURM_NNODES × $gpus_per_node." \
             "Ask sbatch for as many GPUs as the model is spread over: --nodes, --gpus-per-node."
    fi
    # SLURM's commands are called in this shell: where vLLM runs in an image, they are not in there.
    local facts nodes cluster
    nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST" 2>/dev/null) || nodes=''
    if [ -z "${SLURM_CLUSTER_NAME:-}" ]; then
        cluster=$(timeout 10 scontrol show config 2>/dev/null | sed -n 's/^ClusterName *= *//p') || cluster=''
        export SLURM_CLUSTER_NAME=$cluster
    fi
    # The key is made in there and goes into the record alone, a file that only you may read.
    facts=$("${python[@]}" -m workshop.servers.slurm.job announce --nodes "$nodes" \
        --name "${WORKSHOP_NAME:-$SLURM_JOB_NAME}" --model "$model" --served "$served" --log "$folder/output_$job.out")
    IFS=$'\t' read -r WORKSHOP_RECORD WORKSHOP_API_HOST WORKSHOP_API_PORT \
        WORKSHOP_HEAD_ADDRESS WORKSHOP_MASTER_PORT WORKSHOP_CHECK_PORT WORKSHOP_RAY_PORT model <<<"$facts"
    export WORKSHOP_RECORD WORKSHOP_API_HOST WORKSHOP_API_PORT
    export WORKSHOP_HEAD_ADDRESS WORKSHOP_MASTER_PORT WORKSHOP_CHECK_PORT WORKSHOP_RAY_PORT
    say "head $(hostname) at $WORKSHOP_HEAD_ADDRESS; the server will be http://$WORKSHOP_API_HOST:$WORKSHOP_API_PORT/v1"
}

start_engine() {
    serve_args+=(--served-model-name "$served"
                 --tensor-parallel-size "$tensor_parallel_size" --pipeline-parallel-size "$pipeline_parallel_size")
    if [ "${WORKSHOP_LEARNERS:-0}" != 0 ]; then     # a class: nobody's request may be large enough to starve the others
        # workshop/guard/fairshare.py, class_arguments: guidance compiles in milliseconds what may take xgrammar minutes.
        export VLLM_ENFORCE_STRICT_TOOL_CALLING=${VLLM_ENFORCE_STRICT_TOOL_CALLING:-0}
        serve_args+=(--max-logprobs 20 --middleware workshop.guard.fairshare.FairShare
                     --structured-outputs-config '{"backend": "guidance"}'
                     --override-generation-config "{\"max_new_tokens\": ${WORKSHOP_MAX_TOKENS:-1024}}")
    fi
    serve_args+=("${site_serve_args[@]}")           # later ones count: the script's, the site's, the person's
    if [ -n "${WORKSHOP_SERVE_ARGS_FILE:-}" ]; then
        local more
        mapfile -t more <"$WORKSHOP_SERVE_ARGS_FILE"
        serve_args+=("${more[@]}")
    fi
    unset SLURM_CPUS_PER_GPU                        # srun refuses it beside --cpus-per-task, and the job has its CPUs
    # A node whose part ends takes the whole step with it (--kill-on-bad-exit): a server with a part missing only hangs.
    # --export: after `sbatch --export=NONE` srun would pass nothing on.
    srun --export=ALL --label --kill-on-bad-exit=1 --ntasks="$SLURM_NNODES" --ntasks-per-node=1 \
        --cpus-per-task="${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-1}}" bash "$slurm_folder/rank.sh" "$model" "${serve_args[@]}" &
    engine=$!
}

wait_until_ready() {
    local code=0
    "${python[@]}" -m workshop.servers.slurm.job watch --record "$WORKSHOP_RECORD" --model "$model" \
        --output "$folder/output_$job.out" --error "$folder/error_$job.out" &
    watch=$!
    wait -n || code=$?                              # of the two children, the engine and the watch, whichever ends first
    kill -0 "$engine" 2>/dev/null || engine_ended "$code"
    watch=''
    if [ "$code" != 0 ]; then
        ended_by=ready-budget
        exit 4
    fi
    on_every_node --keep &                          # what was compiled, for the next start of this server
}

on_every_node() {                                   # rank.sh beside the engine: --keep, --clean
    srun --export=ALL --overlap --quiet --immediate=5 --ntasks="$SLURM_NNODES" --ntasks-per-node=1 \
        bash "$slurm_folder/rank.sh" "$1" 2>/dev/null
}

wait_until_end() {
    local code=0
    wait "$engine" || code=$?
    engine_ended "$code"
}

end_with_engine() {                                 # $1: works for the engine, and would wait for it to come back
    local look_every_s=2
    while kill -0 "$engine" 2>/dev/null; do sleep "$look_every_s"; done
    kill -USR1 "$1" 2>/dev/null                     # a batch writes down what it has, and ends
}

engine_ended() {                                    # a server ends only when it is told to: its end is a failure
    ended_by=engine
    engine=''
    say "the engine's step ended with exit code $1" >&2
    [ "$1" != 0 ] || exit 70
    exit "$1"
}

write_the_end() {                                   # $1: exit code; the reason stands last in both files
    local words='' code=0 answer
    if [ "$refused" ] && [ -z "${WORKSHOP_RECORD:-}" ]; then    # perhaps for want of a Python
        words=$(say "ended: $refused" && say "remedy: $remedy")
    else
        words=$(job_end "$1") || code=$?
        # What is written is what SLURM answers. Its TERM, which comes with the requeue, is ignored here and in scontrol.
        if [ "$code" = "$requeue_wanted" ] && ! answer=$(scontrol requeue "$job" 2>&1); then
            words=$(job_end "$1" --refused "${answer:-scontrol said nothing}")
        fi
        [ "$words" ] || words=$(say "ended: $ended_by, with exit code $1; its record could not be written")
    fi
    echo "$words"
    echo "$words" >&2
    rm -f "$WORKSHOP_REASONS"
}

job_end() {                                         # $1: exit code; more options follow
    local facts
    facts=$(timeout 10 scontrol --oneliner show job "$job" 2>/dev/null) || facts=''
    "${python[@]}" -m workshop.servers.slurm.job end --record "${WORKSHOP_RECORD:-}" --cause "$ended_by" --code "$1" \
        --facts "$facts" --output "$folder/output_$job.out" --error "$folder/error_$job.out" "${@:2}"
}

finish() {
    local code=$?
    trap - EXIT
    trap '' TERM INT USR1                           # one end is enough
    set +e
    [ -z "$environment_said" ] || environment_refusal
    [ -z "$watch" ] || kill "$watch" 2>/dev/null
    if [ "$ended_by" = cancelled ]; then            # SLURM has told all steps to end, and kills what stays: first things first
        write_the_end "$code"
        wait ${engine:+"$engine"}
    else
        if [ -n "$engine" ]; then
            [ "$ended_by" != ready-budget ] || show_stacks
            stop_engine
        fi
        # What a killed engine could not remove itself.
        [ -z "${WORKSHOP_RECORD:-}" ] || on_every_node --clean
        write_the_end "$code"
    fi
    if [ -e "$early_log" ]; then                    # SLURM's own words, if it had any
        cat "$early_log" >&2
        rm -f "$early_log"
    fi
    if [ -n "${WORKSHOP_PACKAGE:-}" ]; then
        rm -f "$WORKSHOP_PACKAGE/workshop" "$WORKSHOP_PACKAGE/inference_planner"
        rmdir "$WORKSHOP_PACKAGE" 2>/dev/null
    fi
    exit "$code"
}

show_stacks() {                                     # where each process stands: what hung is written nowhere else
    local tries before=0 now quiet_s=1
    scancel --quiet --signal=USR2 "$SLURM_JOB_ID.0"
    for ((tries = 0; tries < 10; tries++)); do      # until all nodes have said it: nothing more comes for a second
        sleep "$quiet_s"
        now=$(grep -c '(most recent call first)' "$folder/error_$job.out" || true)
        [ "$now" = 0 ] || [ "$now" != "$before" ] || break
        before=$now
    done
}

stop_engine() {
    local tries
    scancel --quiet --signal=TERM "$SLURM_JOB_ID.0" # the engine's step alone: `scancel JOB` waits for pending tasks of an array
    for ((tries = 0; tries < 100; tries++)); do     # each node gives its part 5 s
        kill -0 "$engine" 2>/dev/null || return 0
        sleep "$ask_every_s"
    done
    kill -KILL "$engine"
}

#!/bin/bash
# One node's part of the engine: `srun … rank.sh MODEL [flags of vllm serve]`, once on every node of the job.
# Node 0 is the head: it alone opens the API. `rank.sh --clean` removes what a killed engine left on this node;
# `rank.sh --keep` puts away what the engine has compiled.
set -euo pipefail

# shellcheck source=environment.sh
source "$WORKSHOP_SLURM/environment.sh"
umask 077
user=$(id -un)
engine='' ray='' joining='' held='' ask_every_s=0.1

# srun may lose the last words of a task that ends: what counts is written to a file of the job as well.
tell() { echo "[workshop] $*" | tee -a "$WORKSHOP_REASONS" >&2; }

mine() { [ -O "$1" ] && [ ! -L "$1" ]; }     # on a node's disk a neighbour may have made a folder or a link of any name

foretold=$WORKSHOP_SCRATCH/workshop-$user-$SLURM_JOB_ID scratch=''  # on this node's own disk, for this job alone
for folder in "$foretold" "$foretold".*; do
    ! mine "$folder" || scratch=$folder     # of an earlier start, or of the step that this one cleans up after
done

clean() {                                   # what a killed engine leaves: shared memory, and nobody else's
    [ "$scratch" ] || return 0
    if [ -s "$scratch/facts" ] && [ "$(ls -A /dev/shm)" ]; then      # the engine was started
        (
            [ ${#python[@]} != 0 ] || load_environment "$scratch/environment"
            "${python[@]}" -m workshop.servers.local.scratch "$scratch/shm"
        ) || true
    fi
    [ ! -e "$scratch/compiled" ] || drop_compiled
    rm -rf -- "$scratch"
}

# What torch and Triton compile may know where it lies: the same server has the same path at each start, a folder on this
# node's disk that one job holds at a time. Between jobs it is kept in an archive for each server, GPU kind, version of
# vLLM, and node of the job. It is code that runs: only what is your own is taken.
restore_compiled() {                        # $1 GPU kind and version; the rest: model and flags, by which vLLM names it
    local kept=${WORKSHOP_COMPILE_CACHE:-${WORKSHOP_HOME:-$HOME/.workshop}/cache} command name place archive
    [ "$kept" != no ] || return 0
    command=$(printf '%s\0' "${@:2}" | sha256sum)
    name=${command:0:16}-$SLURM_NODEID
    place=$WORKSHOP_SCRATCH/workshop-$user-compiled-$name archive=$kept/compiled-$user/$1/$name.tar
    printf '%s\n' "$place" "$archive" >"$scratch/compiled"      # before it is there: an end at any moment removes it
    if ! { mkdir -p "$place" && mine "$place" && exec {held}>"$place/held" && flock --nonblock "$held"; }; then
        rm -f "$scratch/compiled"
        return 0
    fi
    if mine "$kept/compiled-$user" && mine "$archive" && tar -xf "$archive" -C "$place"; then
        echo "[workshop] compiled at an earlier start: $archive" >&2
    fi
    caches_in "$place"
}
keep_compiled() {                           # whole or not at all: jobs may start and end at the same time
    local place archive part
    { read -r place && read -r archive; } <"$scratch/compiled" || return 0
    part=$archive.$SLURM_JOB_ID
    [ "$(find "$place/vllm/torch_compile_cache" -newer "$place/held" -print -quit)" ] || return 0  # nothing new
    mkdir -p "${archive%/*}" && tar -cf "$part" -C "$place" --exclude=modelinfos vllm inductor triton &&
        mv -f "$part" "$archive"
    rm -f "$part"
}
drop_compiled() {                           # unless another job holds the folder
    local place
    place=$(head -1 "$scratch/compiled")
    mine "$place" || return 0
    ( [ "$held" ] || exec {held}>>"$place/held"
      flock --timeout 5 "$held" && rm -rf -- "$place" ) || true
}
caches_in() {                               # folders of this node alone: on a shared home nodes would clobber each other's
    mkdir -p "$1"/{vllm,inductor,triton}
    export VLLM_CACHE_ROOT=$1/vllm TORCHINDUCTOR_CACHE_DIR=$1/inductor TRITON_CACHE_DIR=$1/triton
    # One cache may stay: what vLLM finds out about a model class in a process of its own (half of a small start). Its
    # files carry a digest and are replaced whole, so nodes and jobs can share them.
    local shared=${WORKSHOP_HOME:-$HOME/.workshop}/cache/modelinfos
    mkdir -p "$shared" && ln -sfn "$shared" "$VLLM_CACHE_ROOT/modelinfos"
}
case ${1:-} in
    --clean) clean; exit 0 ;;
    --keep) [ ! "$scratch" ] || keep_compiled; exit 0 ;;
esac

make_scratch() {
    mkdir -p "$WORKSHOP_SCRATCH" 2>/dev/null || true
    if [ ! "$scratch" ] && mkdir "$foretold" 2>/dev/null; then
        scratch=$foretold
    fi
    if ! scratch=${scratch:-$(mktemp -d "$foretold.XXXXXX" 2>/dev/null)} || ! mkdir -p "$scratch"/{tmp,shm} 2>/dev/null; then
        tell "refused: $(hostname) cannot write to $WORKSHOP_SCRATCH."
        tell "remedy: Is its disk full? Else set WORKSHOP_SCRATCH in site.sh to another disk of the nodes."
        exit 3
    fi
    caches_in "$scratch"
    export TMPDIR=$scratch/tmp XDG_CACHE_HOME=$scratch/cache
    export WORKSHOP_SERVER_FOLDER=$scratch/shm  # vllm_main notes there which shared memory is this job's own
    export HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1} VLLM_NO_USAGE_STATS=1 PYTHONUNBUFFERED=1
    # vLLM itself gives up after 600 s, and 405B loads for longer; the job's own budget decides (job.sh).
    export VLLM_ENGINE_READY_TIMEOUT_S=${VLLM_ENGINE_READY_TIMEOUT_S:-86400}
}

end_engine() {                              # politely, then not: a worker in the middle of a collective never looks up
    local leader tries
    for leader in ${engine:+"$engine"} ${ray:+"$ray"}; do
        kill -TERM "$leader" 2>/dev/null || true
        for ((tries = 0; tries < 50; tries++)); do
            kill -0 "$leader" 2>/dev/null || break
            sleep "$ask_every_s"
        done
        pkill -KILL -s "$leader" || true    # its workers: they are of the same session
    done
}
show_ray() {                                # why it did not start: its own words go with the scratch folder
    local file
    for file in "$scratch"/r/session_latest/logs/{gcs_server,raylet,monitor,dashboard_agent}.{out,err,log}; do
        if [ -s "$file" ]; then
            echo "[workshop] ${file##*/} of Ray on $(hostname) ends with:"
            tail -n 20 "$file"
        fi
    done >&2
}
finish() {
    local code=$?
    trap '' TERM INT
    if [ -n "$environment_said" ]; then
        environment_refusal
        tell "refused: $refused"
        tell "remedy: $remedy"
    fi
    end_engine
    [ ! "$joining" ] || show_ray
    clean
    exit "$code"
}
trap finish EXIT
trap 'exit 0' TERM INT        # SLURM's word, or the job's end: not our failure
trap '' USR2                  # asks Python's processes for their stacks (vllm_main), and ends no other: children ignore it too

make_scratch
load_environment "$scratch/environment"
# Every node tells the head what it has; the head refuses for all of them what was not planned. Seconds, not minutes.
setsid "${python[@]}" -m workshop.servers.slurm.preflight "$1" >"$scratch/facts" &
engine=$!                                   # in the background: a shell that waits in the foreground hears no signal
wait "$engine"
engine=''
IFS=$'\t' read -r VLLM_HOST_IP kind watchdog GLOO_SOCKET_IFNAME <"$scratch/facts"
export VLLM_HOST_IP GLOO_SOCKET_IFNAME NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-$GLOO_SOCKET_IFNAME}

restore_compiled "$kind" "$@"
args=("$@")
if [ "$watchdog" = yes ]; then              # this vLLM writes the stacks itself, also of a server that hangs later on
    args=("$1" --watchdog-config "{\"dump_dir\": \"${WORKSHOP_REASONS%/*}/stacks\"}" "${@:2}")
fi
if [ "$SLURM_NODEID" = 0 ]; then            # the guard comes last, and so stands in front of all others
    args+=(--host "$WORKSHOP_API_HOST" --port "$WORKSHOP_API_PORT" --middleware workshop.guard.auth.RequireKey)
fi

start_native() {                            # vLLM's own way: the same command on every node, one of them the head
    if [ "$SLURM_NNODES" -gt 1 ]; then
        args+=(--nnodes "$SLURM_NNODES" --node-rank "$SLURM_NODEID"
               --master-addr "$WORKSHOP_HEAD_ADDRESS" --master-port "$WORKSHOP_MASTER_PORT")
        [ "$SLURM_NODEID" = 0 ] || args+=(--headless)
    fi
    setsid "${python[@]}" -m workshop.servers.vllm_main serve "${args[@]}" &
    engine=$!
}

start_ray() {                               # as the seeds do it, but waiting for what is needed
    local ray_args=(--node-ip-address="$VLLM_HOST_IP" --num-gpus="$WORKSHOP_GPUS_PER_NODE" --disable-usage-stats --block
                    --object-store-memory=2147483648)   # else 30 % of the node's memory, which vLLM does not use
    export RAY_TMPDIR=$scratch/r RAY_ADDRESS=$WORKSHOP_HEAD_ADDRESS:$WORKSHOP_RAY_PORT
    # A head that is busy with its start may answer late: a driver and the other nodes wait for as long as the workshop does.
    export RAY_gcs_server_request_timeout_seconds=${RAY_gcs_server_request_timeout_seconds:-300}
    if [ "$SLURM_NODEID" = 0 ]; then
        setsid "${python[@]}" -m workshop.servers.slurm.ray start --head --port="$WORKSHOP_RAY_PORT" --include-dashboard=false \
            --temp-dir="$scratch/r" --ray-client-server-port="$((WORKSHOP_RAY_PORT + 1))" "${ray_args[@]}" &
        ray=$! joining=yes
        setsid "${python[@]}" -m workshop.servers.slurm.ray head "$RAY_ADDRESS" "$SLURM_NNODES" "$WORKSHOP_CHECK_PORT" &
        engine=$!
        wait "$engine"
        joining=''
        setsid "${python[@]}" -m workshop.servers.vllm_main serve "${args[@]}" --distributed-executor-backend ray &
        engine=$!
    else
        setsid "${python[@]}" -m workshop.servers.slurm.ray worker "$RAY_ADDRESS" "$SLURM_NNODES" "$WORKSHOP_CHECK_PORT" &
        engine=$!
        wait "$engine"
        setsid env -u RAY_ADDRESS "${python[@]}" -m workshop.servers.slurm.ray start --address="$RAY_ADDRESS" "${ray_args[@]}" &
        engine=$!
    fi
}

case ${ENGINE:-native} in
    native) start_native ;;
    ray) start_ray ;;
    *) tell "refused: ENGINE=$ENGINE is no engine."; tell "remedy: Use native or ray."; exit 3 ;;
esac

# With proctrack/cgroup SLURM signals the step's first process alone: it is passed on.
trap 'asked=yes; pkill -USR2 --session "$engine" || true' USR2
while true; do
    asked='' code=0
    wait -n || code=$?                      # the first of them to end ends this node's part; a signal ends a wait early
    [ "$asked" ] || break
done
tell "$(hostname), node $SLURM_NODEID: vLLM ended by itself with exit code $code"
# A headless vLLM exits with 0 when its worker dies, and SLURM would wait for the others for ever.
[ "$code" != 0 ] || exit 70
exit "$code"

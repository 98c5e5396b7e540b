# shellcheck shell=bash disable=SC2034   # python: read by job.sh and node.sh
# The test bed's site.sh: what differs from a cluster with GPUs is here, and in no script.
export SBATCH_PARTITION=gpu
export WORKSHOP_MODELS=@BED@/models
export WORKSHOP_MODEL=${WORKSHOP_MODEL:-@MODEL@}
export WORKSHOP_SCRATCH=/tmp
export WORKSHOP_SHARED=@BED@/class
export WORKSHOP_INTERFACE=
export WORKSHOP_FABRIC=
export WORKSHOP_LOAD_GB_PER_S=0.25
export WORKSHOP_ALLOW_CPU=yes
export PATH=@BED@/bin:$PATH             # the bed's nvidia-smi, also after sbatch --export=NONE

workshop_environment() {
    python=("@PYTHON@")
}
# vLLM on the CPU of a machine with fewer cores than ranks
export VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 TORCHDYNAMO_DISABLE=1 VLLM_CPU_KVCACHE_SPACE=1
site_serve_args=(--enforce-eager --kv-cache-memory-bytes 67108864 --max-model-len 512)

# shellcheck shell=bash disable=SC2034,SC1091
# Example of a site: nodes are given whole, so that a job may ask for neither memory nor GPUs (SLURM counts none there).
# Copy it over slurm/site.sh, or point WORKSHOP_SITE to your copy.
# By hand: `workshop slurm submit 70b --dry-run` writes the changed script, and says where it is: sbatch THAT

export SBATCH_PARTITION=gh
export SBATCH_ACCOUNT=ABC-12345
export SBATCH_QOS=
export SBATCH_CONSTRAINT=

# No --mem, no --gpus-per-node, no --cpus-per-task; two lines that this site wants.
site_sbatch=(--mem= --gpus-per-node= --cpus-per-task= --exclusive --mail-type=FAIL)
export WORKSHOP_GPU=h100                        # SLURM knows no type here, so the plan is told
export WORKSHOP_GPUS_PER_NODE=4                 # and how many a node has

export WORKSHOP_MODELS=/work/abc/models
export WORKSHOP_SCRATCH=/tmp
export WORKSHOP_SHARED=/work/abc/class
export VLLM_CACHE_ROOT=/scratch/abc/$USER/vllm

export WORKSHOP_INTERFACE=
export WORKSHOP_FABRIC=ib0
export WORKSHOP_LOAD_GB_PER_S=1.0

workshop_environment() {
    module reset
    module load python3/3.11
    source /work/abc/vllm/bin/activate          # a virtual environment with vLLM
    python=(python)
}
site_serve_args=()

for variable in "${!SBATCH_@}" "${!WORKSHOP_@}"; do
    [ -n "${!variable}" ] || unset "$variable"
done
unset variable

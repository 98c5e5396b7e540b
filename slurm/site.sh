# shellcheck shell=bash disable=SC2034   # python, site_serve_args, site_sbatch: read by job.sh, node.sh and submit
# This site's settings: the only file to edit for a cluster. Lines marked EDIT are those that sites change;
# sites/ has filled-in examples. `workshop doctor` checks them against the cluster.
#
#   source slurm/site.sh && sbatch slurm/70b.sbatch
#
# It is read three times: by your shell (sbatch takes SBATCH_… from there), by the job, and on every node.
# As long as it is as it came, an administrator's /etc/workshop/site.sh counts instead. WORKSHOP_SITE=FILE counts most.

if [ -z "${BASH_VERSION:-}" ]; then
    echo "site.sh is for bash: run bash first" >&2
    return 1
fi
if [ -z "${WORKSHOP_SITE:-}" ] && [ -r /etc/workshop/site.sh ] &&
    (cd "${BASH_SOURCE[0]%/*}" && sha256sum --check --status site.sha256); then
    export WORKSHOP_SITE=/etc/workshop/site.sh
    # shellcheck source=/dev/null
    source /etc/workshop/site.sh
    return
fi

# --- what sbatch needs: a value that is left empty is not sent -------------------------------------------------
export SBATCH_PARTITION=            # EDIT partition with the GPUs; empty: the cluster's default
export SBATCH_ACCOUNT=              # EDIT account that pays; empty: your default
export SBATCH_QOS=                  # EDIT quality of service, where the site asks for one
export SBATCH_CONSTRAINT=           # EDIT feature that selects the GPU, for example h100
export SBATCH_GPUS_PER_NODE=        # EDIT h100:8, where nodes differ from the scripts' 4
export SBATCH_GRES=                 # EDIT gpu:h100:4, where the site asks so
# Other #SBATCH lines of the scripts: (--mem=) takes one away, (--mem=0) replaces it, (--exclusive) adds one.
# `workshop slurm submit 70b --dry-run` writes the script with all of this in its head, and says where it is.
site_sbatch=()                      # EDIT for example (--mem= --gpus-per-node=): neither memory nor GPUs are asked for

# --- what `workshop slurm submit` plans with ---------------------------------------------------------------------
export WORKSHOP_GPU=                # EDIT the GPUs' name in the catalog (h100, a100-40gb, …); empty: SLURM's type
export WORKSHOP_CPUS_PER_GPU=       # EDIT processors; empty: the script's, or 4
export WORKSHOP_GIB_PER_GPU=        # EDIT memory of the host; empty: the script's, or 48

# --- where things are ------------------------------------------------------------------------------------------
export WORKSHOP_MODELS=${WORKSHOP_MODELS:-}  # EDIT folder of the models, on a file system that every node sees
export WORKSHOP_SCRATCH=/tmp        # EDIT disk of each node itself: caches and temporary files of the job
export WORKSHOP_SHARED=${WORKSHOP_SHARED:-}  # EDIT folder of the class, for `workshop share`; empty: none
# What vLLM compiles is kept in ~/.workshop/cache/vllm. On another disk of yours, that every node sees and nobody else
# may write (it is code that runs): export VLLM_CACHE_ROOT=/scratch/you/vllm

# --- network ---------------------------------------------------------------------------------------------------
export WORKSHOP_INTERFACE=          # EDIT interface that learners reach (eth0); empty: the one towards this login node
export WORKSHOP_FABRIC=             # EDIT interface between the nodes (ib0); empty: the one towards the head node

# --- speed of the model folder, GB/s a node: loading may take bytes / speed, and then it counts as stuck ----------
export WORKSHOP_LOAD_GB_PER_S=0.25  # EDIT 0.25 loads 405B (810 GB) in 54 minutes

# --- environment of the engine: sets the array `python`, the command that runs Python with vLLM -----------------
workshop_environment() {                                    # EDIT conda, module, or container: see sites/
    local conda
    # shellcheck disable=SC1091         # conda's own file
    if conda=$(conda info --base 2>/dev/null) && source "$conda/etc/profile.d/conda.sh" &&
        conda activate vllm-inference 2>/dev/null; then     # the GPU build: environment.yml
        python=(python)
    else                                                    # what `make workshop` made: for the CPU
        python=("$WORKSHOP_ROOT/.venv/bin/python")
    fi
}
# Flags of `vllm serve` for every server of this site.
site_serve_args=()                  # EDIT for example (--disable-custom-all-reduce)

for variable in "${!SBATCH_@}" "${!WORKSHOP_@}"; do
    [ -n "${!variable}" ] || unset "$variable"
done
unset variable

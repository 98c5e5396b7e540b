# shellcheck shell=bash disable=SC2034   # python, site_serve_args: read by job.sh and rank.sh
# This site's settings: the only file to edit for a cluster. Lines marked EDIT are those that sites change;
# sites/ has two filled-in examples. `workshop doctor` checks them against the cluster.
#
#   source slurm/site.sh && sbatch slurm/70b.sbatch
#
# It is read three times: by your shell (sbatch takes SBATCH_… from there), by the job, and on every node.

# --- what sbatch needs: a value that is left empty is not sent -------------------------------------------------
export SBATCH_PARTITION=            # EDIT partition with the GPUs; empty: the cluster's default
export SBATCH_ACCOUNT=              # EDIT account that pays; empty: your default
export SBATCH_QOS=                  # EDIT quality of service, where the site asks for one
export SBATCH_CONSTRAINT=           # EDIT feature that selects the GPU, for example h100

# --- where things are ------------------------------------------------------------------------------------------
export WORKSHOP_MODELS=$HOME/models # EDIT folder of the models, on a file system that every node sees
export WORKSHOP_SCRATCH=/tmp        # EDIT disk of each node itself: caches and temporary files of the job
export WORKSHOP_SHARED=             # EDIT folder of the class, for `workshop share`; empty: none

# --- network ---------------------------------------------------------------------------------------------------
export WORKSHOP_INTERFACE=          # EDIT interface that learners reach (eth0); empty: the one towards this login node
export WORKSHOP_FABRIC=             # EDIT interface between the nodes (ib0); empty: the one towards the head node

# --- speed of the model folder, GB/s a node: loading may take bytes / speed, and then it counts as stuck ----------
export WORKSHOP_LOAD_GB_PER_S=0.25  # EDIT 0.25 loads 405B (810 GB) in 54 minutes

# --- environment of the engine: sets the array `python`, the command that runs Python with vLLM -----------------
workshop_environment() {
    if [ -x "$WORKSHOP_ROOT/.venv/bin/python" ]; then       # what `make workshop` made
        python=("$WORKSHOP_ROOT/.venv/bin/python")
    else                                                    # EDIT conda, module, or container: see sites/
        # shellcheck disable=SC1091        # conda's own file
        source "$(conda info --base)/etc/profile.d/conda.sh"
        conda activate vllm-inference
        python=(python)
    fi
}
# Flags of `vllm serve` for every server of this site.
site_serve_args=()                  # EDIT for example (--disable-custom-all-reduce)

for variable in SBATCH_PARTITION SBATCH_ACCOUNT SBATCH_QOS SBATCH_CONSTRAINT WORKSHOP_SHARED; do
    [ -n "${!variable}" ] || unset "$variable"
done
unset variable

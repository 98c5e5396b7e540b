# shellcheck shell=bash disable=SC2034,SC1091
# Example of a site: conda environments on a shared home, InfiniBand between the nodes, projects on Lustre.
# Copy it over slurm/site.sh, or point WORKSHOP_SITE to your copy.

export SBATCH_PARTITION=gpu_h100
export SBATCH_ACCOUNT=my_lab                    # your lab's account
export SBATCH_QOS=
export SBATCH_CONSTRAINT=h100                   # the partition has A100 as well

export WORKSHOP_MODELS=/lustre/my_lab/models    # seen by all nodes; filled by `workshop prefetch`
export WORKSHOP_SCRATCH=/scratch                # NVMe of each node
export WORKSHOP_SHARED=/lustre/my_lab/class     # chgrp to the class, mode 2750
export VLLM_CACHE_ROOT=/lustre/my_lab/$USER/vllm    # what vLLM compiles: yours alone

export WORKSHOP_INTERFACE=eth0                  # OnDemand sessions reach the nodes over Ethernet
export WORKSHOP_FABRIC=ib0                      # the parts of the engine meet over InfiniBand
export WORKSHOP_LOAD_GB_PER_S=2.0               # Lustre, measured with: dd if=SHARD of=/dev/null bs=16M

workshop_environment() {
    module purge
    module load miniforge
    source "$(conda info --base)/etc/profile.d/conda.sh"
    conda activate vllm-inference
    python=(python)
}
# NCCL finds the InfiniBand cards by itself; this only keeps it off a management card.
export NCCL_IB_HCA=mlx5_0,mlx5_1,mlx5_2,mlx5_3
site_serve_args=()

for variable in SBATCH_PARTITION SBATCH_ACCOUNT SBATCH_QOS SBATCH_CONSTRAINT WORKSHOP_SHARED; do
    [ -n "${!variable}" ] || unset "$variable"
done
unset variable

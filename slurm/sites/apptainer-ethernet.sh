# shellcheck shell=bash disable=SC2034
# Example of a site: vLLM from an Apptainer image, Ethernet between the nodes, NFS home, PCIe cards without NVLink.
# Copy it over slurm/site.sh, or point WORKSHOP_SITE to your copy.
# The image, once, on a login node:  apptainer pull $HOME/images/vllm.sif docker://vllm/vllm-openai:v0.32.0

export SBATCH_PARTITION=a100
export SBATCH_ACCOUNT=
export SBATCH_QOS=course                        # this site books courses by QOS
export SBATCH_CONSTRAINT=

export WORKSHOP_MODELS=/nfs/teaching/models
export WORKSHOP_SCRATCH=/tmp                    # removed by the job itself
export WORKSHOP_SHARED=/nfs/teaching/class

export WORKSHOP_INTERFACE=                      # one network only: found by itself
export WORKSHOP_FABRIC=
export WORKSHOP_LOAD_GB_PER_S=0.4               # NFS over 10 Gbit/s, shared with others

workshop_environment() {
    # --nv: the driver; the binds: what the image must see; PYTHONPATH and WORKSHOP_… pass through by themselves.
    python=(apptainer exec --nv --bind "$WORKSHOP_MODELS,$WORKSHOP_ROOT,$WORKSHOP_SCRATCH"
            "$HOME/images/vllm.sif" python3)
}
site_serve_args=(--disable-custom-all-reduce)   # needs NVLink or PCIe peer access, which these nodes lack

for variable in SBATCH_PARTITION SBATCH_ACCOUNT SBATCH_QOS SBATCH_CONSTRAINT WORKSHOP_SHARED; do
    [ -n "${!variable}" ] || unset "$variable"
done
unset variable

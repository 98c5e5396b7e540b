#!/bin/bash
# What srun runs on every node of the job: the site's environment, then Python, which checks the node, adds what differs
# from node to node, and starts vLLM (workshop/servers/slurm/job/node.py). `node.sh clean` removes what a killed engine left.
set -euo pipefail
trap '' USR2                            # asks Python's processes for their stacks, and ends no other
folder=${WORKSHOP_JOB%/*} package=${WORKSHOP_JOB%/*}/python reasons=${WORKSHOP_JOB%.json}.reasons
# shellcheck source=environment.sh
source "$WORKSHOP_SLURM/environment.sh"
[ "$1" != clean ] || compgen -G "$WORKSHOP_SCRATCH/workshop-$(id -un)-$SLURM_JOB_ID*" >/dev/null || exit 0
load_environment "$folder/environment_$SLURM_NODEID.out"
exec "${python[@]}" -m workshop.servers.slurm.job.node "$@"

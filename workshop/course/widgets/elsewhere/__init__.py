"""One plan as a SLURM submission, a Kubernetes manifest and a VM's command, side by side."""

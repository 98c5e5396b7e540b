"""Start, guard, find and stop a vLLM server: on this machine, on SLURM, on Kubernetes or in a VM."""

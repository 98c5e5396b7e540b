"""Start, guard, find and stop a vLLM server: here, on SLURM, on Kubernetes or in a VM."""

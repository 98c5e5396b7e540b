"""A server on a SLURM cluster: submit, check before loading, watch, reach."""

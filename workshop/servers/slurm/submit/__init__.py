"""From a plan to a job in the queue: the script with its head, and what SLURM would never start."""

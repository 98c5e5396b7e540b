"""Compute how long a server may take to start: to read its weights, and an allowance.

SLURM jobs, pods and systemd units give up on a server that takes longer. Standard library only.
"""

LOAD_GB_PER_S = 0.25  # a shared folder or a network volume that nobody has measured
START_ALLOWANCE_S = 900.0  # imports, compiling, CUDA graphs


def start_budget_s(
    weight_bytes: int,
    load_gb_per_s: float = LOAD_GB_PER_S,
    allowance_s: float = START_ALLOWANCE_S,
) -> float:
    """Return the seconds that a start may take.

    Args:
        weight_bytes: size of the checkpoint.
        load_gb_per_s: speed of the disk or share that holds it, in 10**9 bytes a second.
        allowance_s: seconds for everything but reading the weights.
    """
    return weight_bytes / 1e9 / load_gb_per_s + allowance_s

from workshop.cli.places import place_command

command = place_command(
    "vm",
    """Print a systemd unit and container commands that serve MODEL on one machine with GPUs, as it is planned.

    Exit code 0 if the model fits, 1 if not, 2 for wrong use. docs/vm.md follows them step by step.

    \b
      workshop vm llama-3.3-70b --gpu h100-nvl --gpus-per-node 2 --max-model-len 64K --disk-gb 120
    """,
)

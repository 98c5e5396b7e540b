from workshop.cli.places import place_command

command = place_command(
    "kubernetes",
    """Print the manifests that serve MODEL on a Kubernetes cluster, as it is planned.

    Exit code 0 if the model fits, 1 if not, 2 for wrong use. kubernetes/README.md has the patches for what clusters
    differ in.

    \b
      workshop kubernetes mistral-7b-v0.3 --gpu t4 --gpus-per-node 2 | kubectl apply -f -
      workshop kubernetes qwen3.5-27b --gpu a100 --gpus-per-node 2 --name qwen --output kubernetes
    """,
)

"""Choose the nodes for the download: any that can run its image, at the place of the GPUs."""

# Labels of --node-selector that hold for the download too: a volume may exist only where it runs,
# and its image is the server's.
PLACE_LABELS = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "kubernetes.io/arch",
)
ARM_PRODUCTS = ("NVIDIA-GH", "NVIDIA-GB")  # GPUs that NVIDIA sells with its own processor, Grace


def download_labels(product: str, node_labels: dict[str, str]) -> dict[str, str]:
    """Return the labels that a node must have for the download.

    Args:
        product: the GPU's name as NVIDIA's feature discovery writes it.
        node_labels: the labels that a node must have for the server.

    The image runs on Linux. Older images are for amd64 alone, as are all GPU nodes but those with
    Grace; there the other nodes may be either.
    """
    labels = {"kubernetes.io/os": "linux"}
    if not product.startswith(ARM_PRODUCTS):
        labels["kubernetes.io/arch"] = "amd64"
    for label, value in node_labels.items():
        if label in PLACE_LABELS:
            labels[label] = value
    return labels

"""For notebook 08: one plan in three places, Kubernetes manifests with policies, and a VM.

>>> from workshop import plan
>>> from workshop.course.notebooks import nb08
>>> documents = nb08.kubernetes.manifests(plan("llama-3.1-8b", "h100", usage="serve"))
>>> "Deployment" in [document["kind"] for document in documents]
True
>>> nb08.manifest.faults(nb08.manifest.sound())         # the policies that it breaks
[]
>>> nb08.component("keda", "ScaledObject")["spec"]["minReplicaCount"]
1
"""

from typing import Any

import yaml

from workshop.course.topics import manifest
from workshop.course.widgets.elsewhere.view import ThreePlaces
from workshop.errors import BadInput
from workshop.servers import kubernetes, vm

__all__ = ["ThreePlaces", "component", "components", "kubernetes", "manifest", "vm"]


def components(name: str) -> dict[str, dict[str, Any]]:
    """Return {kind: document} of what a folder of kubernetes/components adds, such as tenant."""
    documents = {}
    for file, text in kubernetes.component(name).items():
        if file != "kustomization.yaml":
            for document in yaml.safe_load_all(text):
                documents[document["kind"]] = document
    return documents


def component(name: str, kind: str) -> dict[str, Any]:
    """Return one document of a folder of kubernetes/components.

    The kind "Component" is the kustomization itself.

    Raises:
        BadInput: the folder has no document of that kind.
    """
    documents = components(name)
    documents["Component"] = yaml.safe_load(kubernetes.component(name)["kustomization.yaml"])
    if kind not in documents:
        raise BadInput(f"The component {name} has no {kind}.", f"It has: {', '.join(documents)}.")
    return documents[kind]

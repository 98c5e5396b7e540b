"""What notebook 08 uses: one plan in three places, Kubernetes manifests and the policies for them, a VM.

>>> from workshop import plan
>>> from workshop.course import nb08
>>> documents = nb08.kubernetes.manifests(plan("llama-3.1-8b", "h100", usage="serve"))
>>> "Deployment" in [document["kind"] for document in documents]
True
>>> nb08.manifest.faults(nb08.manifest.sound())         # the policies that it breaks
[]
"""

from workshop.course import manifest
from workshop.course.widgets.elsewhere.view import ThreePlaces
from workshop.servers import kubernetes, vm

__all__ = ["ThreePlaces", "kubernetes", "manifest", "vm"]

"""What notebooks 08 and 09 need: one plan in three places, Kubernetes manifests; the teaching model in fewer bits.

>>> from workshop import elsewhere, plan
>>> documents = elsewhere.kubernetes.manifests(plan("llama-3.1-8b", "h100", usage="serve"))
>>> "Deployment" in [document["kind"] for document in documents]
True
>>> elsewhere.manifest.faults(elsewhere.manifest.sound())       # the policies that it breaks
[]
"""

from workshop.course import manifest, quantised
from workshop.course.widgets.bits.view import BitsExplorer
from workshop.course.widgets.elsewhere.view import ThreePlaces
from workshop.engine import measured_runs as recorded
from workshop.servers import kubernetes, vm
from workshop.teaching_model import reference, schemes

__all__ = ["BitsExplorer", "ThreePlaces", "kubernetes", "manifest", "quantised", "recorded", "reference", "schemes",
           "vm"]  # fmt: skip

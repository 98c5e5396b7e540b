"""`workshop kubernetes`: the plan as manifests, for kubectl or as kustomize base and overlay.

One pod a node: a Deployment on one node, a LeaderWorkerSet on several. OpenShift: the same, without
a user of ours. The templates read as the YAML that they make; what depends on the plan (name,
image, arguments, sizes, budgets) is a Case's.
"""

from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import Any

import yaml
from inference_planner.answer.parallelism import Plan
from inference_planner.answer.report import plus_minus

from workshop.errors import BadInput
from workshop.home import writing
from workshop.servers.kubernetes import code
from workshop.servers.kubernetes.case import Case
from workshop.servers.kubernetes.options import Options
from workshop.servers.kubernetes.rendering import make

__all__ = [
    "COMPONENTS",
    "Case",
    "Options",
    "component",
    "header",
    "manifests",
    "overlay",
    "render",
    "write",
]

# Variants for kustomize: each is a folder of components/, with the files beside its
# kustomization.yaml.
COMPONENTS: dict[str, tuple[str, ...]] = {
    "drain": ("disruption-budget",),
    "gateway-timeouts": (),
    "gke-gateway": ("policies",),
    "ipv6": (),
    "keda": ("scaled-object",),
    "no-monitor": (),
    "tenant": ("namespace",),
    "tenant-server": (),
    "volume-owner": (),
}
WIDTH = 108  # of the header's lines


def manifests(plan: Plan, options: Options | None = None) -> list[dict[str, Any]]:
    """Return what `kubectl apply` gets, as plain data: base and overlay in one list.

    Raises what Case does.
    """
    return list(yaml.safe_load_all(render(plan, options)))


def render(plan: Plan, options: Options | None = None) -> str:
    """Return the same as YAML with comments, for `workshop kubernetes … | kubectl apply -f -`."""
    case = Case(plan, options)
    documents = [make("weights", case=case), make("server", case=case)]
    if case.options.openshift:
        documents.append(make("route", name=case.name))
    documents += [make("monitor"), make("config_map", data=code.config_map())]
    return _comment(header(case)) + "---\n".join(documents)


def _comment(lines: list[str]) -> str:
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def header(case: Case) -> list[str]:
    """Return the lines on top: the command that made it, what it is, what the cluster needs."""
    plan = case.plan
    split = f"TP {plan.tensor_parallel_size} × PP {plan.pipeline_parallel_size}"
    if plan.data_parallel_size > 1:
        split += f" × DP {plan.data_parallel_size}, in each replica"
    description = (
        f"{case.hub} on {plan.gpus} × {plan.gpu}, {split}: "
        f"{plan.kv_cache_tokens:,} tokens of KV cache ({plus_minus(plan)}), "
        f"{plan.max_concurrency:.2f} requests of {plan.max_model_len:,} tokens at once, "
        f"about {plan.single_stream_tokens_per_s:.0f} tokens/s for one. "
        "Made by the command above; make it again rather than editing it."
    )
    needs = f"Needs: {'; '.join(_needs(case))}."
    return [case.command, "", *wrap(description, WIDTH), "", *wrap(needs, WIDTH)]


def _needs(case: Case) -> list[str]:
    """Return what the cluster must have."""
    labels = ", ".join(f"{label}={value}" for label, value in case.node_labels.items())
    needs = [
        "the Secrets vllm-api-key and, for gated models, hf-token",
        f"nodes labelled {labels}",
    ]
    if "-MIG-" in case.product:
        needs.append(
            "MIG strategy single (strategy mixed has other resource names: "
            "the patch in kubernetes/README.md)"
        )
    if case.many:
        needs.append(
            'the LeaderWorkerSet controller (without it: no matches for kind "LeaderWorkerSet")'
        )
    if case.shared_volume:
        needs.append("a storage class for ReadWriteMany")
    if case.options.ingress:
        needs.append(f"the Secret {case.name}-tls with a certificate for {case.options.ingress}")
        needs.append("a default ingress class, or the patch for another (kubernetes/README.md)")
    if case.options.http_route:
        needs.append(
            f"the Gateway {case.options.gateway}, with TLS, open to this namespace (Gateway API v1)"
        )
        needs.append(
            "for long answers the component gke-gateway on GKE, gateway-timeouts elsewhere"
        )
    needs.append(
        "the Prometheus operator for the PodMonitor (without it, the component no-monitor)"
    )
    return needs


def overlay(plan: Plan, options: Options | None = None) -> dict[str, str]:
    """Return {path: text} of a kustomize tree without code/: base/, components/, overlays/NAME/."""
    case = Case(plan, options)
    neutral = Case(plan, replace(case.options, openshift=False))  # the component changes it back
    made_by = _comment([f"{case.command} --output kubernetes", *header(case)[1:]])
    folder = f"overlays/{case.name}"
    files = {
        "base/kustomization.yaml": make("base"),
        "base/monitor.yaml": make("monitor"),
        "components/openshift/kustomization.yaml": make("openshift"),
        "components/openshift/route.yaml": make("route", name="set-by-the-replacement"),
        f"{folder}/kustomization.yaml": made_by + make("overlay", case=case),
        f"{folder}/weights.yaml": make("weights", case=neutral),
        f"{folder}/server.yaml": make("server", case=neutral),
    }
    for name in COMPONENTS:
        for file, text in component(name).items():
            files[f"components/{name}/{file}"] = text
    return files


def component(name: str) -> dict[str, str]:
    """Return {file: text} of one folder of components/, such as keda.

    Raises:
        BadInput: there is no such component.
    """
    if name not in COMPONENTS:
        raise BadInput(f"There is no component {name!r}.", f"Choose from: {', '.join(COMPONENTS)}.")
    files: dict[str, str] = {}
    for part in ("kustomization", *COMPONENTS[name]):
        files[f"{part}.yaml"] = make(f"components/{name}/{part}")
    return files


def _code(folder: Path) -> dict[str, str]:
    """Return {path: text} of code/, of which kustomize makes the ConfigMap of the pods' modules."""
    in_checkout = code.is_in_checkout(folder)
    files = {"code/kustomization.yaml": make("code", in_checkout=in_checkout)}
    if not in_checkout:
        for path, text in code.copies().items():
            files[f"code/{path}"] = text
    return files


def write(plan: Plan, folder: str | Path, options: Options | None = None) -> list[Path]:
    """Write the kustomize tree below `folder`; return the files.

    An overlay of that name is replaced.
    """
    tree = Path(folder).expanduser()
    paths: list[Path] = []
    for name, text in (overlay(plan, options) | _code(tree)).items():
        path = tree / name
        with writing(path, "Give --output a folder that you may write."):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths

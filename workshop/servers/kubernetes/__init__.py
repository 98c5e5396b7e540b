"""`workshop plan … --as kubernetes`: the plan as manifests, for kubectl or as a kustomize overlay.

One pod a node: a Deployment on one node, a LeaderWorkerSet on several. OpenShift: the same, without
a user of ours. The templates read as the YAML that they make; what depends on the plan (name,
image, arguments, sizes, budgets) is a KubernetesServer's. No program is in a manifest: the image is
vLLM's own, or one that kubernetes/Dockerfile makes of it, with the workshop's guard.
"""

from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import Any

import yaml
from inference_planner.answer.parallelism import Plan
from inference_planner.answer.report import plus_minus

from workshop.errors import BadInput, plain
from workshop.home import writing
from workshop.install_words import course_folder
from workshop.servers.kubernetes.case import KubernetesServer
from workshop.servers.kubernetes.options import Options
from workshop.servers.kubernetes.rendering import GUARDED_BY_VLLM, make

__all__ = [
    "KubernetesServer",
    "Options",
    "component",
    "components",
    "header",
    "manifests",
    "overlay",
    "render",
    "write",
]

WIDTH = 108  # of the header's lines


def manifests(plan: Plan, options: Options | None = None) -> list[dict[str, Any]]:
    """Return what `kubectl apply` gets, as plain data.

    Raises what KubernetesServer does.
    """
    return list(yaml.safe_load_all(render(plan, options)))


def render(plan: Plan, options: Options | None = None, command: str = "") -> str:
    """Return the same as YAML with comments, for `workshop plan … --as kubernetes | kubectl apply -f -`.

    command: the command line that makes it, for the first line.
    """
    case = KubernetesServer(plan, options)
    documents = [make("server", case=case)]
    if not case.options.claim:
        documents.insert(0, make("weights", case=case))
    if case.options.openshift:
        documents.append(make("route", name=case.name))
    return _comment(header(case, command)) + "---\n".join(documents)


def _comment(lines: list[str]) -> str:
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def header(case: KubernetesServer, command: str = "") -> list[str]:
    """Return the lines on top: the command that made it, if any, what it is, what the cluster needs."""
    plan = case.plan
    split = f"TP {plan.tensor_parallel_size} × PP {plan.pipeline_parallel_size}"
    if plan.data_parallel_size > 1:
        split += f" × DP {plan.data_parallel_size}, in each replica"
    description = (
        f"{case.served_name} on {plan.gpus} × {plan.gpu}, {split}: "
        f"{plan.kv_cache_tokens:,} tokens of KV cache ({plus_minus(plan)}), "
        f"{plan.max_concurrency:.2f} requests of {plan.deployment.settings.max_model_len:,} tokens at once, "
        f"about {plan.single_stream_tokens_per_s:.0f} tokens/s for one."
    )
    lines: list[str] = []
    if command:
        description += " Made by the command above; make it again rather than editing it."
        lines = [plain(command), ""]
    lines += wrap(description, WIDTH)
    for paragraph in (f"Needs: {'; '.join(_needs(case))}.", f"Key: {_key(case)}"):
        lines += ["", *wrap(paragraph, WIDTH)]
    return lines


def _key(case: KubernetesServer) -> str:
    """Return what the key guards, and what it leaves open to whom."""
    if case.has_guard:
        return "the guard asks for it on every path but /health."
    who = "the NetworkPolicy lets the pods of this namespace alone reach them"
    if case.options.openshift:
        who = "the NetworkPolicy lets the pods of this namespace and OpenShift's router reach them"
    elif case.open_to_cluster:
        who = "every pod of the cluster reaches them, because an Ingress must, too"
    return (
        f"vLLM's own key (--api-key) guards {GUARDED_BY_VLLM} alone. /invocations (which answers like "
        f"{GUARDED_BY_VLLM}/chat/completions), /tokenize, /metrics and others answer without it; "
        f"{who}. --guard-image closes them (kubernetes/README.md)."
    )


def _needs(case: KubernetesServer) -> list[str]:
    """Return what the cluster must have."""
    labels = ", ".join(f"{label}={value}" for label, value in case.node_labels.items())
    needs = ["the Secret vllm-api-key", f"nodes labelled {labels}"]
    if case.options.claim:
        needs.append(
            f"the claim {case.options.claim} with the model in {case.options.model_path}, "
            "which the pods may read (user 2000, or the one of OpenShift's namespace)"
        )
        if case.shared_volume:
            needs.append("that claim as ReadOnlyMany or ReadWriteMany")
    else:
        needs.append("for gated models the Secret hf-token")
    if "-MIG-" in case.product:
        needs.append("MIG strategy single (strategy mixed has other resource names)")
    if case.many:
        needs.append(
            'the LeaderWorkerSet controller (without it: no matches for kind "LeaderWorkerSet")'
        )
    if case.shared_volume and not case.options.claim:
        needs.append("a storage class for ReadWriteMany")
    if case.options.ingress:
        needs.append(f"the Secret {case.name}-tls with a certificate for {case.options.ingress}")
        needs.append("a default ingress class, or the component ingress-nginx")
    return needs


def overlay(plan: Plan, options: Options | None = None, command: str = "") -> dict[str, str]:
    """Return {path: text} of a kustomize tree: components/ and overlays/NAME/.

    command: as in `render`.
    """
    case = KubernetesServer(plan, options)
    # the component openshift changes it back
    neutral = KubernetesServer(plan, replace(case.options, openshift=False))
    folder = f"overlays/{case.name}"
    files = {
        f"{folder}/kustomization.yaml": _comment(header(case, command))
        + make("overlay", case=case),
        f"{folder}/server.yaml": make("server", case=neutral),
    }
    if not case.options.claim:
        files[f"{folder}/weights.yaml"] = make("weights", case=neutral)
    for name in components():
        for file, text in component(name).items():
            files[f"components/{name}/{file}"] = text
    return files


def components() -> list[str]:
    """Return the variants for kustomize: the folders of kubernetes/components."""
    return sorted(path.name for path in _components_folder().iterdir())


def _components_folder() -> Path:
    return course_folder("kubernetes") / "components"


def component(name: str) -> dict[str, str]:
    """Return {file: text} of one folder of components/, such as keda.

    Raises:
        BadInput: there is no such component.
    """
    if name not in components():
        remedy = f"Choose from: {', '.join(components())}."
        raise BadInput(f"There is no component {name!r}.", remedy)
    paths = sorted((_components_folder() / name).glob("*.yaml"))
    return {path.name: path.read_text(encoding="utf-8") for path in paths}


def write(
    plan: Plan, folder: str | Path, options: Options | None = None, command: str = ""
) -> list[Path]:
    """Write the kustomize tree below `folder`; return the files. command: as in `render`.

    An overlay of that name is replaced, and so are the components.
    """
    tree = Path(folder).expanduser()
    paths: list[Path] = []
    for name, text in overlay(plan, options, command).items():
        path = tree / name
        with writing(path, "Give --output a folder that you may write."):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths

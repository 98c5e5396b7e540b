"""`workshop plan … --kubernetes`: the plan as manifests, for kubectl at once or as kustomize base and overlay.

One pod a node: a Deployment on one node, a LeaderWorkerSet on several. OpenShift: the same, without a user of ours. The
templates read as the YAML that they make; what depends on the plan is computed in case.py.
"""

from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import Any

import jinja2
import yaml

from workshop.launch import pod
from workshop.launch.auth import KEY_FILE_VARIABLE, METRICS_KEY_FILE_VARIABLE
from workshop.launch.home import writing
from workshop.launch.kubernetes import case as cases
from workshop.launch.kubernetes.case import Case, Options
from workshop.plan.parallelism import Plan

PACKAGE = Path(__file__).parents[2]
WIDTH = 108  # of the header's lines
NAMES = {  # what the templates know besides the case
    "CODE": pod.CODE,
    "KEY_FILE_VARIABLE": KEY_FILE_VARIABLE,
    "METRICS_KEY_FILE_VARIABLE": METRICS_KEY_FILE_VARIABLE,
    "MODELS": cases.MODELS,
    "PORT": cases.PORT,
    "PROBE_EVERY_S": cases.PROBE_EVERY_S,
    "START_ALLOWANCE_S": round(cases.START_ALLOWANCE_S),
}


TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,  # YAML; what a user may choose goes through `scalar`
)
TEMPLATES.globals |= NAMES
TEMPLATES.filters["scalar"] = lambda text: yaml.safe_dump(text, width=10_000).removesuffix("...\n").strip()


def _make(template: str, **values: Any) -> str:
    return TEMPLATES.get_template(f"{template}.yaml.j2").render(**values)


def manifests(plan: Plan, options: Options | None = None) -> list[dict[str, Any]]:
    """Return what `kubectl apply` gets, as plain data: base and overlay in one list; raises what Case does."""
    return list(yaml.safe_load_all(render(plan, options)))


def render(plan: Plan, options: Options | None = None) -> str:
    """Return the same as YAML with comments, for `workshop plan … --kubernetes | kubectl apply -f -`."""
    case = Case(plan, options)
    documents = [_make("weights", case=case), _make("server", case=case)]
    documents += [_make("route", name=case.name)] if case.options.openshift else []
    return _comment(header(case)) + "---\n".join([*documents, _make("monitor"), _make("code", code=code())])


def _comment(lines: list[str]) -> str:
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def header(case: Case) -> list[str]:
    """Return the lines on top: the command that made it, what it is, and what the cluster must have."""
    p = case.plan
    what = (
        f"{case.hub} on {p.gpus} × {p.gpu}, TP {p.tensor_parallel_size} × PP {p.pipeline_parallel_size}: "
        f"{p.kv_cache_tokens:,} tokens of KV cache, {p.max_concurrency:.2f} requests of {p.max_model_len:,} tokens at "
        f"once, about {p.single_stream_tokens_per_s:.0f} tokens/s for one. Made by the command above; make it again "
        "rather than editing it."
    )
    needs = ["the Secrets vllm-api-key and, for gated models, hf-token"]
    needs.append(f"nodes labelled {', '.join('='.join(label) for label in case.node_labels.items())}")
    if case.many:
        needs.append('the LeaderWorkerSet controller (without it: no matches for kind "LeaderWorkerSet")')
    if case.shared_volume:
        needs.append("a storage class for ReadWriteMany")
    if case.options.ingress:
        needs.append(f"the Secret {case.name}-tls with a certificate for {case.options.ingress}")
    if case.options.http_route:
        needs.append(f"the Gateway {case.options.gateway}, with TLS, open to this namespace (Gateway API v1)")
    needs.append("the Prometheus operator for the PodMonitor (without it, leave that one out)")
    return [case.command, "", *wrap(what, WIDTH), "", *wrap(f"Needs: {'; '.join(needs)}.", WIDTH)]


def overlay(plan: Plan, options: Options | None = None) -> dict[str, str]:
    """Return {path: text} of a kustomize tree: base/, components/openshift/, overlays/NAME/."""
    case = Case(plan, options)
    here = f"overlays/{case.name}"
    neutral = Case(plan, replace(case.options, openshift=False))  # the component changes it back
    made = _comment([f"{case.command} --output kubernetes", *header(case)[1:]])
    return {
        "base/kustomization.yaml": _make("base"),
        "base/code.yaml": _make("code", code=code()),
        "base/monitor.yaml": _make("monitor"),
        "components/openshift/kustomization.yaml": _make("openshift"),
        "components/openshift/route.yaml": _make("route", name="set-by-the-replacement"),
        f"{here}/kustomization.yaml": made + _make("overlay", case=case),
        f"{here}/weights.yaml": _make("weights", case=neutral),
        f"{here}/server.yaml": _make("server", case=neutral),
    }


def write(plan: Plan, folder: str | Path, options: Options | None = None) -> list[Path]:
    """Write the kustomize tree below `folder`; return the files. An overlay of that name is replaced."""
    paths = []
    for name, text in overlay(plan, options).items():
        path = Path(folder).expanduser() / name
        with writing(path, "Give --output a folder that you may write."):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


def code() -> dict[str, str]:
    """Return the modules that the pods need, by name: vLLM's own image is used, and has no workshop.

    Packages are empty there: what theirs offer is not in the pod.
    """
    read = {name: (PACKAGE / f"{name}.py").read_text(encoding="utf-8") for name in pod.CODE}
    return {f"{n.replace('/', '.')}.py": "" if n.endswith("__init__") else text for n, text in read.items()}

"""`workshop kubernetes`: the plan as manifests, for kubectl at once or as kustomize base and overlay.

One pod a node: a Deployment on one node, a LeaderWorkerSet on several. OpenShift: the same, without a user of ours. The
templates read as the YAML that they make; what depends on the plan (name, image, arguments, sizes, budgets) is a Case's.
"""

import hashlib
import math
import re
import shlex
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from textwrap import wrap
from typing import Any

import inference_planner
import jinja2
import yaml
from inference_planner import machines, versions
from inference_planner.catalog import list_gpus, load_gpu
from inference_planner.command import check_starts, flags
from inference_planner.command import words as flag_words
from inference_planner.parallelism import Plan

from workshop.errors import BadInput, WorkshopError
from workshop.servers import pod
from workshop.servers.guard.auth import GUARD, KEY_FILE_VARIABLE, METRICS_KEY_FILE_VARIABLE
from workshop.servers.home import writing
from workshop.servers.kubernetes import placement
from workshop.servers.start_time import LOAD_GB_PER_S, START_ALLOWANCE_S, start_budget_s

GIB = 1 << 30
PORT, MASTER_PORT = 8000, 29501
MODELS = "/models"
PROBE_EVERY_S = 10
# file system, tokenizer and configs; a round number
PVC_MARGIN, PVC_SPARE_GIB, PVC_STEP_GIB = 1.05, 2, 10
SLUG = (
    r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"  # Kubernetes' own rules for names, labels and resources
)
LABEL = r"([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)"
# Variants for kustomize: each is a folder of components/, with the files beside its kustomization.yaml.
COMPONENTS = {
    "gateway-timeouts": (),
    "gke-gateway": ("policies",),
    "ipv6": (),
    "no-monitor": (),
    "volume-owner": (),
}
HOST = (SLUG, "a host's name, as llm.example.org")
PACKAGES = {
    "workshop": Path(__file__).parents[2],
    "inference_planner": Path(inference_planner.__file__).parent,
}
WIDTH = 108  # of the header's lines
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,  # YAML; what a user may choose goes through `scalar`
)
# What the templates know besides the case.
TEMPLATES.globals |= {
    "CODE": pod.CODE,
    "MODELS": MODELS,
    "PORT": PORT,
    "PROBE_EVERY_S": PROBE_EVERY_S,
}
TEMPLATES.globals |= {
    "START_ALLOWANCE_S": round(START_ALLOWANCE_S),
    "KEY_FILE_VARIABLE": KEY_FILE_VARIABLE,
}
TEMPLATES.globals |= {
    "METRICS_KEY_FILE_VARIABLE": METRICS_KEY_FILE_VARIABLE,
    "GPU_NODE_LABELS": placement.GPU_NODE_LABELS,
}
TEMPLATES.filters["scalar"] = lambda text: (
    yaml.safe_dump(text, width=10_000).removesuffix("...\n").strip()
)


def _like(form: str, meant: str, default: Any = None) -> Any:
    """An option with what it must look like, and that in words."""
    return field(default=default, metadata={"form": form, "meant": meant})


@dataclass(frozen=True)
class Options:
    """What a plan does not say. pvc_size in GiB, None: computed; name None: model, GPUs; image None: vLLM's own.

    node_selector: labels ("key=value") in place of the GPU's; rdma: a resource such as "rdma/ib", one for each pod.
    """

    name: str | None = None
    pvc_size: int | None = None
    storage_class: str | None = _like(SLUG, "the name of a StorageClass")
    load_gb_per_s: float = LOAD_GB_PER_S
    replicas: int = 1
    image: str | None = _like(
        r"\w[\w./:-]*(:(?!latest$)[\w.-]+|@sha256:[0-9a-f]{64})",
        "an image with its version, as registry/vllm:v0.25.1",
    )
    pull_secret: str | None = _like(SLUG, "the name of a Secret")
    hf_endpoint: str | None = _like(
        r"https?://[\w.-]+(:\d+)?(/[\w./-]*)?", "an address, as https://mirror.example"
    )
    node_selector: tuple[str, ...] = _like(rf"({SLUG}/)?{LABEL}={LABEL}?", "KEY=VALUE", ())
    ingress: str | None = _like(*HOST)
    http_route: str | None = _like(*HOST)
    gateway: str | None = _like(
        rf"({SLUG}/)?{SLUG}", "the name of a Gateway, as NAME or NAMESPACE/NAME"
    )
    priority_class: str | None = _like(SLUG, "the name of a PriorityClass")
    queue: str | None = _like(SLUG, "the name of a LocalQueue of Kueue")
    rdma: str | None = _like(rf"{SLUG}/{LABEL}", "the name of a resource, as rdma/ib")
    openshift: bool = False


class Case:
    """A plan and its options, and what the templates need of them, computed from the plan.

    Raises WorkshopError: it does not fit; BadInput: it cannot become manifests.
    """

    def __init__(self, plan: Plan, options: Options | None = None):
        p, o = self.plan, self.options = plan, options or Options()
        self.product = load_gpu(p.gpu).kubernetes_product
        slug = re.sub(r"[^a-z0-9]+", "-", p.model.lower()).strip("-")[:28].strip("-")
        self.name = o.name or f"{slug}-{p.gpus}x{re.sub(r'[^a-z0-9]+', '-', p.gpu)}"[:40].strip("-")
        # without those that differ from node to node; '' for a flag alone
        self.flags = flags(p.deployment)
        self._check_plan()
        self._check_options()
        self._check_model()
        self.hub = p.config.hub_ids[0]  # what is downloaded and served
        self.folder = f"{MODELS}/{self.hub.split('/')[-1]}"  # of the weights, in the pods
        # of the version that the plan's formulas are of
        self.image = o.image or f"vllm/vllm-openai:v{p.vllm_version}"
        # What a node must be labelled with: by default the GPU's name, as NVIDIA's feature discovery writes it.
        self.node_labels = dict(word.split("=") for word in o.node_selector) or {
            "nvidia.com/gpu.product": self.product
        }
        self.download_labels = placement.download_labels(self.product, self.node_labels)
        self.many = p.nodes > 1  # pods make the server
        self.shared_volume = self.many or o.replicas > 1  # several nodes mount the weights at once
        self.download = f"{self.name}-weights-{self._download_digest()}"
        self._size()

    def _download_digest(self) -> str:
        """Return six digits that change with what the Job runs: a Job cannot be changed, so another one is made."""
        o = self.options
        parts = [
            self.image,
            self.hub,
            self.folder,
            o.pull_secret,
            o.hf_endpoint,
            self.shared_volume,
            pod.CODE,
        ]
        parts.append(sorted(self.download_labels.items()))
        assert TEMPLATES.loader
        for template in ("weights.yaml.j2", "pods.j2"):
            parts.append(TEMPLATES.loader.get_source(TEMPLATES, template)[0])
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:6]

    def _check_plan(self) -> None:
        p = self.plan
        if not p.fits:
            raise WorkshopError(
                f"{p.model} does not fit on {p.gpus} × {p.gpu}: {p.reasons[-1]}", " ".join(p.advice)
            )
        if not self.product:
            known = ", ".join(name for name in list_gpus() if load_gpu(name).kubernetes_product)
            raise BadInput(
                f"The manifests are for NVIDIA GPUs, and {p.gpu} is none.", f"Choose from: {known}."
            )

    def _check_options(self) -> None:
        o = self.options
        if not 0 < o.load_gb_per_s <= 1000:
            raise BadInput(
                f"{o.load_gb_per_s:g} GB/s is no speed of a volume.",
                "Give GB/s above 0, for example 0.25.",
            )
        if not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", self.name):
            remedy = "Use up to 40 lower-case letters, digits and '-', beginning with a letter."
            raise BadInput(f"{self.name!r} cannot be the name of a Service.", remedy)
        for option in filter(lambda each: each.metadata, fields(o)):
            given, meant = getattr(o, option.name), option.metadata["meant"]
            for text in given if isinstance(given, tuple) else (given,):
                if text is not None and not re.fullmatch(option.metadata["form"], text):
                    raise BadInput(
                        f"--{option.name.replace('_', '-')} {text!r} is not {meant}.",
                        f"Give {meant}.",
                    )
        if bool(o.http_route) != bool(o.gateway):
            raise BadInput(
                "--http-route and --gateway belong together.",
                "Give the host's name, and the Gateway's.",
            )

    def _check_model(self) -> None:
        config = self.plan.config
        if not config.hub_ids:
            remedy = "Give a catalogue name or its Hub id, or change weights.yaml to copy from elsewhere."
            raise BadInput(
                f"{self.plan.model} has no address on the Hub, so a pod could not download it.",
                remedy,
            )
        check_starts(self.plan.deployment)

    def _size(self) -> None:
        """Set the sizes of volume, memory and processors, and the time that a start may take."""
        o, self.gpus_per_pod = self.options, self.plan.gpus // self.plan.nodes
        # Of the checkpoint: what is downloaded, in its own precision, whatever vLLM makes of it.
        self.weight_bytes = machines.checkpoint_bytes(self.hub)
        wanted = (
            math.ceil((self.weight_bytes / GIB * PVC_MARGIN + PVC_SPARE_GIB) / PVC_STEP_GIB)
            * PVC_STEP_GIB
        )
        if o.pvc_size is not None and o.pvc_size * GIB < self.weight_bytes + machines.SPARE_BYTES:
            said = f"A volume of {o.pvc_size} GiB cannot hold {self.plan.model}: its weights take {self.weight_bytes / GIB:.1f} GiB, and {machines.SPARE_BYTES // GIB} GiB must stay free."
            raise BadInput(said, f"Give --pvc-size {wanted} or more, or leave it out.")
        self.pvc_gib = o.pvc_size or wanted
        seconds = start_budget_s(self.weight_bytes, o.load_gb_per_s)
        self.start_budget_s = math.ceil(seconds / PROBE_EVERY_S) * PROBE_EVERY_S
        # /dev/shm: vLLM's queues (10 × 16 MiB each), and NCCL's buffers where GPUs have no direct way.
        self.shm_gib = 1 + self.gpus_per_pod
        # API server and engine, workers; /dev/shm counts
        self.memory_gib = 8 + 8 * self.gpus_per_pod + self.shm_gib
        self.cpus = 2 + self.gpus_per_pod  # the least of vLLM's guide

    @property
    def command(self) -> str:
        """The command line that makes these manifests."""
        p, o = self.plan, self.options
        words = [
            "workshop",
            "kubernetes",
            self.hub,
            "--gpu",
            load_gpu(p.gpu).name,
            "--gpus-per-node",
            str(self.gpus_per_pod),
        ]
        words += ["--nodes", str(p.nodes)] if self.many else []
        words += flag_words(self.flags)
        words += ["--vllm-version", p.vllm_version] if p.vllm_version != versions.DEFAULT else []
        for name, usual in vars(Options()).items():
            flag, value = f"--{name.replace('_', '-')}", getattr(o, name)
            for each in (value if isinstance(value, tuple) else [value]) if value != usual else []:
                words += (
                    [flag]
                    if each is True
                    else [flag, f"{each:g}" if isinstance(each, float) else str(each)]
                )
        return shlex.join(words)

    def arguments(self, headless: bool = False) -> list[str]:
        """Return the arguments of `vllm serve`: the plan's, the folder, and what makes one server of the pods."""
        args = [
            self.folder,
            *(f"{flag}={value}" if value else flag for flag, value in self.flags.items()),
        ]
        if self.many:
            args += ["--nnodes=$(LWS_GROUP_SIZE)", "--node-rank=$(LWS_WORKER_INDEX)"]
            args += ["--master-addr=$(LWS_LEADER_ADDRESS)", f"--master-port={MASTER_PORT}"]
        if headless:
            return [*args, "--headless"]
        # The guard: vLLM's own --api-key leaves paths open, and would stand in the arguments.
        return [
            *args,
            f"--served-model-name={self.hub}",
            "--host=0.0.0.0",
            f"--port={PORT}",
            f"--middleware={GUARD}",
        ]


def _make(template: str, **values: Any) -> str:
    return TEMPLATES.get_template(f"{template}.yaml.j2").render(**values)


def manifests(plan: Plan, options: Options | None = None) -> list[dict[str, Any]]:
    """Return what `kubectl apply` gets, as plain data: base and overlay in one list; raises what Case does."""
    return list(yaml.safe_load_all(render(plan, options)))


def render(plan: Plan, options: Options | None = None) -> str:
    """Return the same as YAML with comments, for `workshop kubernetes … | kubectl apply -f -`."""
    case = Case(plan, options)
    documents = [_make("weights", case=case), _make("server", case=case)]
    documents += [_make("route", name=case.name)] if case.options.openshift else []
    return _comment(header(case)) + "---\n".join(
        [*documents, _make("monitor"), _make("code", code=code())]
    )


def _comment(lines: list[str]) -> str:
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def header(case: Case) -> list[str]:
    """Return the lines on top: the command that made it, what it is, and what the cluster must have."""
    p = case.plan
    replicas = f" × DP {p.data_parallel_size}, in each replica" if p.data_parallel_size > 1 else ""
    what = f"{case.hub} on {p.gpus} × {p.gpu}, TP {p.tensor_parallel_size} × PP {p.pipeline_parallel_size}{replicas}: {p.kv_cache_tokens:,} tokens of KV cache, {p.max_concurrency:.2f} requests of {p.max_model_len:,} tokens at once, about {p.single_stream_tokens_per_s:.0f} tokens/s for one. Made by the command above; make it again rather than editing it."
    needs = ["the Secrets vllm-api-key and, for gated models, hf-token"]
    needs.append(
        f"nodes labelled {', '.join('='.join(label) for label in case.node_labels.items())}"
    )
    if "-MIG-" in case.product:
        needs.append(
            "MIG strategy single (strategy mixed has other resource names: the patch in kubernetes/README.md)"
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
    return [case.command, "", *wrap(what, WIDTH), "", *wrap(f"Needs: {'; '.join(needs)}.", WIDTH)]


def overlay(plan: Plan, options: Options | None = None) -> dict[str, str]:
    """Return {path: text} of a kustomize tree: base/, components/, overlays/NAME/."""
    case = Case(plan, options)
    here = f"overlays/{case.name}"
    neutral = Case(plan, replace(case.options, openshift=False))  # the component changes it back
    made = _comment([f"{case.command} --output kubernetes", *header(case)[1:]])
    files = {
        "base/kustomization.yaml": _make("base"),
        "base/code.yaml": _make("code", code=code()),
        "base/monitor.yaml": _make("monitor"),
        "components/openshift/kustomization.yaml": _make("openshift"),
        "components/openshift/route.yaml": _make("route", name="set-by-the-replacement"),
        f"{here}/kustomization.yaml": made + _make("overlay", case=case),
        f"{here}/weights.yaml": _make("weights", case=neutral),
        f"{here}/server.yaml": _make("server", case=neutral),
    }
    for component, resources in COMPONENTS.items():
        for name in ("kustomization", *resources):
            files[f"components/{component}/{name}.yaml"] = _make(f"components/{component}/{name}")
    return files


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
    modules = {}
    for name in pod.CODE:
        package, _, inside = name.partition("/")
        text = (PACKAGES[package] / f"{inside}.py").read_text(encoding="utf-8")
        modules[f"{name.replace('/', '.')}.py"] = "" if inside.endswith("__init__") else text
    return modules

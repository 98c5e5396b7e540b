"""One plan in three places, side by side: lines that spell the same fact have the same colour."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import yaml
from inference_planner.answer.parallelism import Plan
from inference_planner.answer.report import plus_minus
from inference_planner.catalog import load_gpu

from workshop.course.drawing.html import Html, bold, div, legend, panel, tag, verdict
from workshop.course.widgets.controls import Explorer, choice, gpus, models
from workshop.engine.planning import plan
from workshop.errors import WorkshopError
from workshop.servers import kubernetes, vm
from workshop.servers.slurm.submit import plain

# fact → (what it is in words, how a line that spells it looks)
GPUS = r"--nodes|gpus-per-node|nvidia\.com/gpu|--gpus all|replicas|size:|min_gpu"
MODEL = "MODEL=|/models|claimName|persistentVolume|storage"
FACTS = {
    "gpus": ("how many GPUs, and of which kind", GPUS),
    "split": (
        "how the model is split over them",
        "(tensor|pipeline)[-_]parallel[-_]size",
    ),
    "model": ("which weights, and where they lie", MODEL),
    "length": (
        "how long a request may be",
        "max-model-len|max-num|--dtype|--quantization",
    ),
    "start": (
        "how long a start may take",
        "startupProbe|failureThreshold|periodSeconds: 10|READY_TIMEOUT|--time",
    ),
    "memory": ("memory that the ranks share", "shm|--ipc|medium: Memory|sizeLimit"),
    "key": ("who may ask", r"[Kk]ey|KEY|RequireKey|127\.0\.0\.1"),
}
COMMENT = re.compile(r"#(?!SBATCH)")
COLOURS = dict(
    zip(FACTS, ("blue", "orange", "purple", "yellow", "sky", "grey", "green"), strict=True)
)


@dataclass(frozen=True)
class ScriptLine:
    """One line of a script; fact: the key of FACTS that it spells, or an empty string."""

    text: str
    fact: str = ""


@dataclass(frozen=True)
class ServerPlace:
    """One of the three. problem: why it cannot be, with no lines."""

    name: str
    command: str
    lines: tuple[ScriptLine, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Elsewhere:
    """A plan and what it looks like in the three places."""

    plan: Plan
    places: tuple[ServerPlace, ...]


def three(plan: Plan) -> Elsewhere:
    """Return the plan as a SLURM script, a Kubernetes manifest and a VM's container line."""
    options = f"--gpu {plan.gpu} --gpus-per-node {plan.gpus // plan.nodes}"
    if plan.nodes > 1:
        options += f" --nodes {plan.nodes}"
    options += f" --max-model-len {plan.deployment.settings.max_model_len}"
    command = f"workshop plan {plan.model} {options}"
    places = (
        _place("SLURM", f"{command} --as sbatch", slurm_lines, plan),
        _place("Kubernetes", f"{command} --as kubernetes", kubernetes_lines, plan),
        _place("A VM", f"{command} --as systemd", vm_lines, plan),
    )
    return Elsewhere(plan, places)


def _place(name: str, command: str, make: Callable[[Plan], list[str]], plan: Plan) -> ServerPlace:
    """Return what a place is told of the plan, or why it cannot be there."""
    try:
        return ServerPlace(name, command, tuple(map(_line, make(plan))))
    except WorkshopError as error:
        problem = f"{error.message} {error.remedy or ''}".strip()
        return ServerPlace(name, command, problem=problem)


def _line(text: str) -> ScriptLine:
    """Return a line with the first of FACTS that it spells."""
    for name, (_, pattern) in FACTS.items():
        if re.search(pattern, text):
            return ScriptLine(text, name)
    return ScriptLine(text)


def vm_lines(plan: Plan) -> list[str]:
    """Return the command that starts the server's container on a VM."""
    return vm.container(vm.VmServer(plan), "podman").splitlines()


def slurm_lines(plan: Plan) -> list[str]:
    """Return the lines of the job script that spell a fact, with one flag of vLLM a line."""
    if not plan.fits:
        remedy = ""
        if plan.advice:
            remedy = plan.advice[0]
        raise WorkshopError(f"{plan.model} does not fit on {plan.gpus} × {plan.gpu}.", remedy)
    script = plain.render(plan)
    start, end = script.index("exec vllm serve"), script.index("--nnodes")
    flags = re.sub(r"(?<! ) (?=--)", " \\\n        ", script[start:end])
    lines = (script[:start] + flags + script[end:]).splitlines()
    return [line for line in lines if not COMMENT.match(line) and _is_telling(line)]


def _is_telling(line: str) -> bool:
    """Return whether a line of a script spells a fact, or is the command that the flags belong to."""
    return bool(_line(line).fact) or "vllm serve" in line


def kubernetes_lines(plan: Plan) -> list[str]:
    """Return the server's document, without what is the same for every model."""
    specs = {document["kind"]: document.get("spec", {}) for document in kubernetes.manifests(plan)}
    if "LeaderWorkerSet" in specs:
        group = specs["LeaderWorkerSet"]["leaderWorkerTemplate"]
        pod = group["leaderTemplate"]["spec"]
        top = {"kind": "LeaderWorkerSet", "size": group["size"]}
    else:
        pod = specs["Deployment"]["template"]["spec"]
        top = {"kind": "Deployment", "replicas": 1}
    box = pod["containers"][0]
    startup_probe = box["startupProbe"]
    probe = {name: startup_probe[name] for name in ("periodSeconds", "failureThreshold")}
    short = {
        **top,
        "nodeSelector": pod["nodeSelector"],
        "args": box["args"],
        "env": [v for v in box["env"] if v["name"] == "VLLM_API_KEY"],
        "limits": {"nvidia.com/gpu": box["resources"]["limits"]["nvidia.com/gpu"]},
        "startupProbe": probe,
        "volumes": [v for v in pod["volumes"] if v["name"] in ("shm", "models")],
        "claim": specs["PersistentVolumeClaim"]["resources"]["requests"],
    }
    return yaml.safe_dump(short, sort_keys=False, width=1000).splitlines()


class ThreePlaces(Explorer[Elsewhere]):
    """The same plan as a SLURM script, a Kubernetes manifest and a VM's container.

    Equal colours mark equal facts.

    What a place is told differs in its words only: how many GPUs, how the model is split over them,
    the longest request (`max_model_len`, tokens), how long a start may take, who may ask.

    >>> from workshop.course.notebooks import nb08
    >>> places = nb08.ThreePlaces("llama-3.1-70b", "h100", gpus_per_node=4, max_model_len=32768)
    >>> [place.name for place in places.result.places]
    ['SLURM', 'Kubernetes', 'A VM']

    Args:
        model, gpu: catalog names.
        gpus_per_node, nodes: the hardware.
        max_model_len: tokens of one request; cut to what the model reads.
    """

    def __init__(
        self,
        model: str = "llama-3.1-70b",
        gpu: str = "h100",
        *,
        gpus_per_node: int = 4,
        nodes: int = 1,
        max_model_len: int = 32768,
    ):
        per_node = sorted({1, 2, 4, 8, gpus_per_node})
        lengths = sorted({2048, 8192, 32768, 131072, max_model_len})
        gpu_names = ("t4", "a10g", "l4", "a100-80gb", "h100", "h100-nvl", "h200")
        controls = {
            "model": models(model),
            "gpu": gpus(gpu, gpu_names),
            "gpus_per_node": choice("GPUs a node", per_node, gpus_per_node),
            "nodes": choice("nodes", sorted({1, 2, 4, nodes}), nodes),
            "max_model_len": choice("max_model_len", lengths, max_model_len),
        }
        super().__init__(controls, max_width="1180px")

    def compute(self) -> Elsewhere:
        values = self.values
        longest = plan(values["model"], values["gpu"]).deployment.model.max_position_embeddings
        values["max_model_len"] = min(values["max_model_len"], longest)
        return three(plan(usage="serve", **values))

    def picture_of(self, result: Elsewhere) -> Html:
        p = result.plan
        if p.fits:
            sign, look = "✓", "good"
            speed = f"about {p.single_stream_tokens_per_s:.0f} tokens/s for one stream"
            outcome = f"{p.kv_cache_tokens:,} tokens of KV cache ({plus_minus(p)}), {speed}."
        else:
            sign, look = "✗", "bad"
            outcome = (p.advice or p.reasons)[0]
        split = f"TP {p.tensor_parallel_size} × PP {p.pipeline_parallel_size}"
        about = f" on {p.gpus} × {load_gpu(p.gpu).title}: {split}. {outcome}"
        head = verdict(sign, look, p.model, about)
        keys = [(f"bg-{COLOURS[name]}", meaning) for name, (meaning, _) in FACTS.items()]
        columns = div(*map(_column, result.places), cls="columns")
        return panel(head, legend(keys), columns, cls="wide")


def _column(place: ServerPlace) -> Html:
    head = div(bold(place.name), div(place.command, cls="mono"))
    if place.problem:
        return tag("section", head, tag("p", place.problem, cls="ink-bad"), cls="column")
    lines = []
    for line in place.lines:
        look = {}
        if line.fact:
            look = {"cls": f"of-{COLOURS[line.fact]}", "title": FACTS[line.fact][0]}
        lines.append(div(line.text or " ", **look))
    return tag("section", head, div(*lines, cls="script", tabindex="0"), cls="column")

"""What `workshop plan` prints, as JSON or as text: a plan, the machines that hold a model, the catalogue's names."""

# p plan, m machine
import json
import shutil
import textwrap
from collections.abc import Callable

from inference_planner import catalog, machines
from inference_planner.catalog.config import present
from inference_planner.errors import BadInput, PlannerError, plain
from inference_planner.parallelism import Plan, plan
from inference_planner.speed import QUESTION_TOKENS

BAR_CELLS = 56
WIDEST = 110  # columns of a paragraph
STYLES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "cyan": "36",
}


def answer(
    out: Callable[[str], object],
    model: str | None = None,
    gpu: str | None = None,
    *,
    listed: str | None = None,
    on_machines: bool = False,
    as_json: bool = False,
    explain: bool = False,
    make_plan: Callable[..., Plan] = plan,
    **settings: object,
) -> int:
    """Print what was asked for; return the exit code: 1 where the plan does not fit.

    out: prints a text, which has ANSI colours.
    make_plan: `plan`, or a function with the same arguments.

    Raises PlannerError: what plan() refuses, or no machine holds the model.
    """
    if listed:
        names = catalog.list_models() if listed == "models" else catalog.list_gpus()
        out(json.dumps(names, indent=2) if as_json else "\n".join(names))
        return 0
    if model and on_machines:
        return _machines(out, model, settings, as_json, make_plan)
    p = planned(model, gpu, settings, make_plan)
    columns = min(shutil.get_terminal_size().columns, WIDEST)
    out(
        json.dumps(p.to_dict(), indent=2, ensure_ascii=False)
        if as_json
        else text(p, columns, explain)
    )
    return 0 if p.fits and p.command else 1


def planned(
    model: str | None,
    gpu: str | None,
    settings: dict[str, object],
    make_plan: Callable[..., Plan] = plan,
) -> Plan:
    """Return the plan; a model or a GPU that is missing is BadInput."""
    if not model or not gpu:
        example = "For example: llama-3.1-70b --gpu h100 --gpus-per-node 4."
        raise BadInput(f"{'--gpu' if model else 'MODEL'} is missing.", example)
    return make_plan(model, gpu, **settings)


def text(p: Plan, columns: int = WIDEST, explain: bool = False) -> str:
    """Return a plan for people."""
    wide = f" × data parallel {p.data_parallel_size}" if p.data_parallel_size > 1 else ""
    wide += ", expert parallel" if p.enable_expert_parallel else ""
    where = f"{p.gpus} × {p.gpu}" + (f" on {p.nodes} nodes" if p.nodes > 1 else "")
    split = f"tensor parallel {p.tensor_parallel_size} × pipeline parallel {p.pipeline_parallel_size}{wide}"
    version = ink(f"vLLM {p.vllm_version}", "dim")
    lines = ["", f"{ink(plain(p.model), 'bold')} on {ink(where, 'bold')}   {split}   {version}"]
    lines += [*verdict(p, columns), "", *bar(p)]
    for title, said, mark in (
        ("Why", p.reasons, " •"),
        ("For more" if p.fits else "Nearest", p.advice, " →"),
    ):
        if said:
            lines += [
                "",
                ink(title, "bold"),
                *grid([(mark, plain(line)) for line in said], columns),
            ]
    if p.fits and p.command:
        lines += [
            "",
            ink("Run", "bold")
            + (" on every node, with --headless on all but one" if p.nodes > 1 else ""),
        ]
        lines += ["  " + ink(plain(p.command), "cyan")]
    return "\n".join([*lines, *(sources(p, columns) if explain else ()), ""])


def ink(words: str, style: str) -> str:
    """Return words in a style of an ANSI terminal."""
    return f"\x1b[{STYLES[style]}m{words}\x1b[0m"


def grid(rows: list[tuple[str, ...]], columns: int, gap: int = 1) -> list[str]:
    """Lay rows out in columns, each as wide as its widest cell; the last one is wrapped at `columns`."""
    widths = [max(map(len, cells)) + gap for cells in zip(*rows, strict=True)][:-1]
    lines: list[str] = []
    for *cells, last in rows:
        start = "".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True))
        width = max(columns, len(start) + 20)
        below = " " * len(start)
        lines += textwrap.wrap(
            last, width, initial_indent=start, subsequent_indent=below, break_on_hyphens=False
        )
    return lines


def verdict(p: Plan, columns: int) -> list[str]:
    """Say whether it fits, and what it gives."""
    if not p.fits:
        return [ink("✗ does not fit", "red")]
    if not p.command:
        said = f"? would fit by its sizes, but {plain(present(p.deployment).refused)}"
        return [
            ink(line, "yellow") for line in textwrap.wrap(said, columns, break_on_hyphens=False)
        ]
    requests = f"{p.max_concurrency:.2f} requests of {p.max_model_len:,} tokens at once"
    speed = f"about {p.single_stream_tokens_per_s:.0f} tokens/s for one"
    one = p.learners_at_once == 1
    who = "1 learner who asks" if one else f"{p.learners_at_once:,} learners who ask"
    learners = f"{who} {QUESTION_TOKENS} tokens at once {'sees the' if one else 'see their'} first token within 5 s"
    said = f"✓ fits  {p.kv_cache_tokens:,} tokens of KV cache · {requests} · {speed} · {learners}"
    first, *more = textwrap.wrap(said, columns, break_on_hyphens=False)
    return [first.replace("✓ fits", ink("✓ fits", "green")), *more]


def bar(p: Plan) -> list[str]:
    """One GPU's memory as a bar, and what its parts are; `┃` is where its memory ends, if the model needs more."""
    used = p.weights_gib_per_gpu + p.overhead_gib_per_gpu
    parts = [
        ("weights", p.weights_gib_per_gpu, "█", "blue"),
        ("overhead", p.overhead_gib_per_gpu, "▓", "yellow"),
        ("KV cache", max(0.0, p.requested_gib_per_gpu - used), "▒", "green"),
        ("left to others", p.gpu_memory_gib - p.requested_gib_per_gpu, "░", "dim"),
    ]
    whole = max(p.gpu_memory_gib, used)
    cells = [
        ink(cell * (round(BAR_CELLS * size / whole) or int(size > 0.2)), style)
        for _, size, cell, style in parts
    ]
    legend = [f"{ink(cell, style)} {name} {size:.1f}   " for name, size, cell, style in parts]
    has, over = f"{p.gpu_memory_gib:.1f} GiB", used > p.gpu_memory_gib
    end = ink(f" ┃ a GPU has {has}", "red") if over else ink(f" {has} a GPU", "dim")
    return ["  " + "".join(cells) + end, "  " + "".join(legend) + ink("GiB", "dim")]


def sources(p: Plan, columns: int) -> list[str]:
    """Say where each overhead and each part of a decoding step is from."""
    rows = [
        (f" {o.name}", f"{o.bytes / (1 << 20):7,.0f} MiB", f"{o.reason}; source: {o.source}")
        for o in p.overheads
    ]
    lines = ["", ink("Overheads of one GPU", "bold"), *grid(rows, columns, gap=2)]
    if p.gpu != "h200":
        said = "  Kernels and NCCL were measured on an H200; elsewhere they may differ by some 0.3 GiB."
        lines += [ink(said, "dim")]
    rows = [
        (f" {t.name}", f"{t.ms:7.3f} ms", f"{t.source}; may be off by {t.uncertainty}")
        for t in p.decode
    ]
    return (
        [*lines, "", ink("One decoding step, one request", "bold"), *grid(rows, columns, gap=2)]
        if rows
        else lines
    )


def _machines(
    out: Callable[[str], object],
    model: str,
    settings: dict[str, object],
    as_json: bool,
    make_plan: Callable[..., Plan],
) -> int:
    """Print which of the catalogue's machines hold the model. Raises PlannerError: none of them does."""
    offers = machines.offers(model, make_plan, **settings)
    if as_json:
        plans = (
            {"fits": o.fits, "why": o.why, "command": o.plan.command if o.plan and o.fits else ""}
            for o in offers
        )
        out(
            json.dumps(
                [vars(o.machine) | found for o, found in zip(offers, plans, strict=True)], indent=1
            )
        )
    else:
        out(table(offers))
    if not any(offer.fits for offer in offers):
        remedy = "Several nodes may: plan MODEL with --gpu h100 --nodes 2, for SLURM or Kubernetes."
        raise PlannerError(f"None of these {len(offers)} machines holds {model}.", remedy)
    return 0


def table(offers: list[machines.Offer]) -> str:
    """Return the machines that hold a model as a table, and below it why the others do not."""
    rows = [("", "machine", "GPUs", "vCPU", "memory", "local disk", "requests", "tokens/s")]
    for m, p in ((offer.machine, offer.plan) for offer in offers if offer.plan and offer.fits):
        gpus, sizes = (
            f"{p.gpus} of {m.gpus} × {m.gpu}",
            (f"{m.memory_gib:,} GiB", f"{m.local_disk_gb / 1000:.1f} TB"),
        )
        speeds = f"{p.max_concurrency:.1f}", f"{p.single_stream_tokens_per_s:.0f}"
        rows.append((" ✓", f"{m.name} {m.provider}", gpus, str(m.vcpus), *sizes, *speeds))
    lines = [""]
    if len(rows) > 1:
        head, *held = grid(rows, 0, gap=2)
        lines += [
            ink(head, "bold"),
            *(line.replace("✓", ink("✓", "green"), 1) for line in held),
            "",
        ]
        length = next(offer.plan.max_model_len for offer in offers if offer.plan and offer.fits)
        said = f"  requests: of {length:,} tokens at once; tokens/s: for one of them alone; the OS disk is extra."
        lines += [ink(said, "dim"), ""]
    for offer in (offer for offer in offers if not offer.fits):
        m = offer.machine
        lines += [
            f" {ink('✗', 'red')}  {m.name} {m.provider}, {m.gpus} × {m.gpu}: {plain(offer.why)}"
        ]
    return "\n".join([*lines, ""])

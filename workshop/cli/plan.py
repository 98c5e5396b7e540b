"""`workshop plan`: predict memory, parallelism and speed of a model on GPUs."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING

import click

from workshop.cli import plan_places
from workshop.cli.say import console, shown
from workshop.errors import BadInput, plain
from workshop.plan import catalog
from workshop.plan.parallelism import Plan, plan
from workshop.plan.speed import QUESTION_TOKENS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

BAR_CELLS = 56


class Tokens(click.ParamType):
    """A whole number; 8k is 8,000 and 8K is 8,192, as vLLM reads its own flags."""

    name = "integer"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(-?\d{1,15})([kKmM]?)", str(value).strip().replace(",", "").replace("_", ""))
        if not found:
            self.fail(f"{str(value)[:40]!r} is not a whole number (131072, 128K and 128k are).", param, ctx)
        return int(found[1]) * {"": 1, "k": 1000, "K": 1024, "m": 10**6, "M": 1 << 20}[found[2]]


@click.command()
@click.argument("model", required=False)
@click.option("--gpu", help="GPU name, as `--list-gpus` prints them: h100, h200, a100-80gb, …")
@click.option("--gpus-per-node", type=int, help="GPUs in one node.  [default: 8]")
@click.option("--nodes", type=int, help="Nodes that may be used.")
@click.option("--tensor-parallel-size", "-tp", type=int, help="Without it the plan chooses.")
@click.option("--pipeline-parallel-size", "-pp", type=int, help="Without it the plan chooses.")
@click.option("--data-parallel-size", "-dp", type=int, help="Replicas that share their experts.  [default: 1]")
@click.option("--enable-expert-parallel", "-ep", is_flag=True, help="Deal whole experts out over TP × DP GPUs.")
@click.option(
    "--decode-context-parallel-size", "-dcp", type=int, help="Ranks that share a KV head's tokens.  [default: 1]"
)
@click.option("--dtype", default="auto", show_default=True, help="auto, bfloat16, float16 or float32.")
@click.option("--quantization", "-q", help="vLLM's name: fp8, awq, gptq, …; a quantization_config counts as given.")
@click.option("--kv-cache-dtype", default="auto", show_default=True, help="auto, bfloat16, fp8, fp8_e4m3 or fp8_e5m2.")
@click.option("--max-model-len", type=Tokens(), help="Tokens of one request, with its answer.  [default: the model's]")
@click.option("--gpu-memory-utilization", type=float, help="Share of the GPU that vLLM takes.  [default: 0.92]")
@click.option("--max-num-batched-tokens", type=Tokens(), help="Tokens of one step.  [default: vLLM's for this GPU]")
@click.option("--max-num-seqs", type=Tokens(), help="Requests of one step.  [default: vLLM's for this GPU]")
@click.option("--enforce-eager", is_flag=True, help="No CUDA graphs.")
@click.option("--vllm-version", help="Version whose formulas are used.  [default: 0.25.1]")
@click.option("--usage", type=click.Choice(["serve", "llm"]), help="serve (default) or llm: whose defaults.")
@click.option("--network", default="infiniband-ndr", show_default=True, help="Link between nodes.")
@click.option("--exact/--no-exact", default=None, help="Ask vLLM's own classes.  [default: where formulas lack]")
@plan_places.options
@click.option("--explain", is_flag=True, help="Show every overhead and every part of a step, with its source.")
@click.option("--list-models", "listed", flag_value="models", help="Print the catalogue's models.")
@click.option("--list-gpus", "listed", flag_value="gpus", help="Print the catalogue's GPUs.")
@click.option("--json", "as_json", is_flag=True, help="Print data instead of text.")
def command(
    model: str | None, gpu: str | None, listed: str | None, as_json: bool, explain: bool, **options: object
) -> None:
    """Predict memory, parallelism and speed of MODEL on GPUs.

    MODEL is a catalogue name (llama-3.1-70b), its Hub id, or a folder or file with a Hugging Face config.json.
    Exit code 0 if it fits, 1 if not, 2 for wrong use.

    \b
      workshop plan llama-3.1-70b --gpu h100 --gpus-per-node 4
      workshop plan ./my-model --gpu h200 --max-model-len 32K --json
      workshop plan mistral-7b-v0.3 --gpu t4 --gpus-per-node 2 --kubernetes | kubectl apply -f -
      workshop plan llama-3.3-70b --machines
    """
    if listed:
        names = catalog.list_models() if listed == "models" else catalog.list_gpus()
        click.echo(json.dumps(names, indent=2) if as_json else "\n".join(names))
        return
    place, chosen = plan_places.take(options, as_json)
    if model and place == "machines":
        plan_places.machines(model, {**options, "exact": options["exact"] or False}, as_json)  # many plans: do not ask
        return
    if not model or not gpu:
        example = "For example: workshop plan llama-3.1-70b --gpu h100 --gpus-per-node 4."
        raise BadInput(f"{'--gpu' if model else 'MODEL'} is missing.", example)
    result = plan(model, gpu, **options)
    if place:
        if result.nodes > 1 and result.data_parallel_size > 1:
            raise BadInput(f"--{place} makes nothing for replicas on several nodes.", "Take the command of the plan.")
        plan_places.show(place, result, chosen)
        return
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2, ensure_ascii=False))
    else:
        _show(result, explain)
    if not result.fits:
        sys.exit(1)


def _show(p: Plan, explain: bool) -> None:
    out = console(most=110)
    wide = f" × data parallel {p.data_parallel_size}" if p.data_parallel_size > 1 else ""
    wide += ", expert parallel" if p.enable_expert_parallel else ""
    where = f"{p.gpus} × {p.gpu}" + (f" on {p.nodes} nodes" if p.nodes > 1 else "")
    split = f"tensor parallel {p.tensor_parallel_size} × pipeline parallel {p.pipeline_parallel_size}{wide}"
    out.print(f"\n[bold]{shown(p.model)}[/] on [bold]{where}[/]   {split}   [dim]vLLM {p.vllm_version}[/]")
    if p.fits:
        requests = f"{p.max_concurrency:.2f} requests of {p.max_model_len:,} tokens at once"
        speed = f"about {p.single_stream_tokens_per_s:.0f} tokens/s for one"
        class_ = (
            f"{p.learners_at_once:,} learners who ask {QUESTION_TOKENS} tokens at once see their first token within 5 s"
        )
        out.print(f"[bold green]✓ fits[/]  {p.kv_cache_tokens:,} tokens of KV cache · {requests} · {speed} · {class_}")
    else:
        out.print("[bold red]✗ does not fit[/]")
    out.print()
    out.print(_bar(p))
    for title, lines, mark in (("Why", p.reasons, "•"), ("Nearest" if not p.fits else "For more", p.advice, "→")):
        if lines:
            out.print(f"\n[bold]{title}[/]")
            out.print(_bullets(lines, mark))
    if p.fits:
        out.print("\n[bold]Run[/]" + (" on every node, with --headless on all but one" if p.nodes > 1 else ""))
        out.print(f"  [cyan]{shown(p.command)}[/]", soft_wrap=True)
    if explain:
        _explain(out, p)
    out.print()


def _bullets(lines: list[str], mark: str) -> Table:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    for line in lines:
        grid.add_row(Text(f" {mark}"), Text(plain(line)))
    return grid


def _parts(p: Plan) -> list[tuple[str, float, str, str]]:
    """Return (name, GiB, cell, colour) of each part of one GPU; what does not fit runs past the end."""
    kv = max(0.0, p.requested_gib_per_gpu - p.weights_gib_per_gpu - p.overhead_gib_per_gpu)
    return [
        ("weights", p.weights_gib_per_gpu, "█", "blue"),
        ("overhead", p.overhead_gib_per_gpu, "▓", "yellow"),
        ("KV cache", kv, "▒", "green"),
        ("left to others", p.gpu_memory_gib - p.requested_gib_per_gpu, "░", "dim"),
    ]


def _bar(p: Plan) -> Text:
    """One GPU's memory as a bar, and what its parts are; `┃` is where its memory ends, if the model needs more."""
    from rich.text import Text

    bar, legend = Text("  "), Text("\n  ")
    whole = max(p.gpu_memory_gib, p.weights_gib_per_gpu + p.overhead_gib_per_gpu)
    for name, size, cell, colour in _parts(p):
        bar.append(cell * (round(BAR_CELLS * size / whole) or int(size > 0.2)), style=colour)
        legend.append(cell, style=colour)
        legend.append(f" {name} {size:.1f}   ")
    has, over = f"{p.gpu_memory_gib:.1f} GiB", whole > p.gpu_memory_gib
    bar.append(f" ┃ a GPU has {has}" if over else f" {has} a GPU", style="red" if over else "dim")
    return bar + legend + Text("GiB", style="dim")


def _explain(out: Console, p: Plan) -> None:
    """Print each overhead and each part of a decoding step with its source."""
    from rich.table import Table

    look = {"title_justify": "left", "box": None}
    overheads = Table("Overhead", "MiB", "Why", "Source", title="Overheads of one GPU", **look)
    for o in p.overheads:
        overheads.add_row(o.name, f"{o.bytes / (1 << 20):,.0f}", o.reason, o.source)
    step = Table("Part", "ms", "Source", "May be off by", title="One decoding step, one request", **look)
    for t in p.decode:
        step.add_row(t.name, f"{t.ms:.3f}", t.source, t.uncertainty)
    out.print()
    out.print(overheads)
    if p.gpu != "h200":
        out.print("  [dim]Kernels and NCCL were measured on an H200; elsewhere they may differ by some 0.3 GiB.[/]")
    if p.decode:
        out.print()
        out.print(step)

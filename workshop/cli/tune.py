"""`workshop tune`: the GPUs, split and settings that serve a load best."""

from __future__ import annotations

import click

from workshop.cli.say import json_option, say, say_json
from workshop.cli.simulate import LOAD, PLACE, planned
from workshop.errors import BadInput


@click.command(params=[*LOAD, *planned("gpu", *PLACE)])
@click.argument("model", required=False)
@click.option("--price", type=float, help="US dollars an hour for one GPU: adds the cost of a million tokens.")
@click.option("--max-gpus", type=int, default=16, show_default=True, help="No choice has more, over all replicas.")
@json_option("{choices: [{command, gpus, replicas, goodput_per_s, ttft_ms, tpot_ms, usd_per_million_tokens}]}")
def command(model: str | None, gpu: str | None, slo: str | None, as_json: bool, **options: object) -> None:
    """Find the split, replicas and settings that serve a load on the fewest GPUs, by simulation.

    Tried are tensor parallel sizes, replicas, weights and KV cache in FP8, max_num_batched_tokens and max_num_seqs.
    Listed are the choices that no other beats in GPUs, requests within the limits and latency; the best first.

    \b
      workshop tune llama-3.1-8b --gpu h100 --rate 20 --seconds 30 --slo ttft=500ms,tpot=30ms --price 2.5
    """
    if not model or not gpu or not slo:
        missing = "MODEL" if not model else "--gpu" if not gpu else "--slo"
        raise BadInput(
            f"{missing} is missing.",
            "For example: workshop tune llama-3.1-8b --gpu h100 --rate 20 --seconds 30 --slo ttft=500ms,tpot=30ms.",
        )
    from workshop.simulate.tuning import tune

    choices = tune(model, gpu, slo=slo, report=lambda text: say(f"· {text}", err=True), **options)
    if as_json:
        say_json({"choices": [choice.to_dict() for choice in choices]})
        return
    lines = [f"{'GPUs':>5}{'within':>8}{'ttft p95':>10}{'tpot p95':>10}{'$/M tokens':>12}  command"]
    for choice in choices:
        row = choice.to_dict()
        price = row["usd_per_million_tokens"]
        cost = "–" if price is None else f"{price:.2f}"
        times = f"{row['ttft_ms']['p95']:>7,.0f} ms{row['tpot_ms']['p95'] or 0:>7,.1f} ms"
        copies = f"{row['replicas']} × " if row["replicas"] > 1 else ""
        lines.append(f"{row['gpus']:>5}{row['slo_share']:>8.0%}{times}{cost:>12}  {copies}{row['command']}")
    say("\n".join(lines))

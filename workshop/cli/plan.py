from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from workshop.cli.plan_options import plan_options

if TYPE_CHECKING:
    from inference_planner.answer.parallelism import Plan


@click.command(params=list(plan_options()))
@click.option(
    "--machines",
    "on_machines",
    is_flag=True,
    help="Print which common cloud VMs hold the model (no --gpu needed).",
)
@click.argument("model", required=False)
def command(
    model: str | None,
    gpu: str | None,
    listed: str | None,
    as_json: bool,
    explain: bool,
    on_machines: bool,
    **options: Any,
) -> None:
    """Predict memory, parallelism and speed of MODEL on GPUs.

    MODEL is a catalog name (llama-3.1-70b), its Hub id, or a folder or file with a Hugging Face
    config.json. Exit code 0 if it fits, 1 if not, 2 for wrong use.

    \b
      workshop plan llama-3.1-70b --gpu h100 --gpus-per-node 4
      workshop plan ./my-model --gpu h200 --max-model-len 32K --json
      workshop plan llama-3.3-70b --machines

    Nine of ten measured figures lie between the low and the high value of ours (--json); --explain
    says how far apart these are, and why. `basis` is how near your case was measured:
    docs/cards.md.

    Manifests and units from the same options: workshop kubernetes, workshop vm.
    """
    from inference_planner.answer import machines, report
    from inference_planner.arguments import check_no_card, required

    from workshop.engine import exact

    if listed:
        click.echo(report.names(listed, as_json))
    elif on_machines and model:
        check_no_card(options)
        if options["exact"] is None:
            options["exact"] = False  # one plan for each of many machines
        offers = machines.offers(model, exact.plan, **options)
        click.echo(report.machines_json(offers) if as_json else report.machines_text(offers))
        machines.check_any_fits(offers, model)
    else:
        model, gpu = required(model, gpu, options["gpu_memory_gib"])
        plan = exact.plan(model, gpu, **options)
        if as_json:
            click.echo(report.plan_json(plan))
        else:
            click.echo(report.plan_text(plan, report.columns(), explain))
            _print_many_requests(plan)
        sys.exit(0 if plan.starts else 1)


def _print_many_requests(plan: Plan) -> None:
    """Print the tokens per second of many requests together, if the plan knows its speed."""
    from inference_planner.ground.intervals import of_speed

    from workshop.simulate import together
    from workshop.simulate.intervals import share_of_time

    if not plan.starts or not plan.decode or not plan.command:
        return
    most = together.most_at_once(plan)
    numbers = [number for number in together.REQUESTS if number <= most]
    if not numbers:
        return
    click.echo("\nMany requests")
    for number in numbers:
        total = together.tokens_per_s(plan, number)
        share = share_of_time("tpot", "p50", plan.spread.time_share)
        speed = of_speed(total, share)
        ends = f"({speed.low:,.0f} to {speed.high:,.0f})"
        click.echo(f"  {number} at once: about {total:,.0f} tokens/s together {ends}")
    context = f"while all decode with {together.CONTEXT_TOKENS} tokens of context"
    click.echo(f"  {context}; how long users wait: workshop simulate")

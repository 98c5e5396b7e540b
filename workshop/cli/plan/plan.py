from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from workshop.cli.plan import places
from workshop.cli.plan.model_argument import with_config
from workshop.cli.plan_options import PlanningCommand, plan_options

if TYPE_CHECKING:
    from inference_planner.answer.parallelism import Plan


class PlanCommand(PlanningCommand):
    """The command, whose help lists the options of every place in a section of its own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record and isinstance(param, click.Option):
                title = places.title_of(param.name or "")
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


@click.command(cls=PlanCommand, params=[*plan_options(), *places.options()])
@click.option(
    "--machines",
    "on_machines",
    is_flag=True,
    help="Print which common cloud VMs hold the model (no --gpu needed).",
)
@click.option(
    "--as",
    "place",
    type=click.Choice(list(places.PLACES)),
    help="Print what starts the plan: its command alone, a script of SLURM, manifests, or a unit "
    "with container commands.",
)
@click.argument("model", required=False)
def command(
    model: str | None,
    gpu: str | None,
    as_json: bool,
    explain: bool,
    on_machines: bool,
    place: str | None,
    **options: Any,
) -> None:
    """Predict memory, parallelism and speed of MODEL on GPUs.

    MODEL is a catalog name (llama-3.1-70b), a Hub id, or a folder or file with a Hugging Face
    config.json; what the catalog lacks is fetched from the Hub, once. Exit code 0 if it fits, 1 if not, 2 for wrong use. Names: workshop models.

    \b
      workshop plan llama-3.1-70b --gpu h100:4
      workshop plan ./my-model --gpu h200 --max-model-len 32K --json
      workshop plan llama-3.3-70b --machines
      workshop plan mistral-7b-v0.3 --gpu t4:2 --as kubernetes | kubectl apply -f -
      workshop plan llama-3.3-70b --gpu h100-nvl:2 --as systemd --disk-gb 200

    Nine of ten measured figures lie between the low and the high value of ours (--json); --explain
    says how far apart these are, and why. `basis` is how near your case was measured:
    docs/cards.md. Patches for a cluster: kubernetes/README.md; a machine step by step: docs/vm.md.
    """
    from inference_planner.answer import machines, report
    from inference_planner.arguments import check_no_card, required

    from workshop.engine import planning

    of_places = {name: options.pop(name) for name in places.NAMES}
    own = places.checked(place or "", of_places)
    if place:
        places.check_alone(as_json=as_json, explain=explain, machines=on_machines)
        places.print_for(place, model, gpu, options, own)
        return
    if on_machines and model:
        check_no_card(options)
        if options["exact"] is None:
            options["exact"] = False  # one plan for each of many machines
        offers = machines.offers(with_config(model), planning.plan, **options)
        click.echo(report.machines_json(offers) if as_json else report.machines_text(offers))
        machines.check_any_fits(offers, model)
    else:
        model, gpu = required(model, gpu, options["gpu_memory_gib"])
        plan = planning.plan(with_config(model), gpu, **options)
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

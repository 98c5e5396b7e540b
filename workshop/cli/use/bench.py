from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workshop.cli.plan_options import SESSIONS, PlanningCommand, Range, simulated_options
from workshop.cli.say import Seconds, force_option, json_option, say, say_json, waiting
from workshop.errors import BadInput, WorkshopError

if TYPE_CHECKING:
    from workshop.measure.points import Load, Point, SessionLoad, Simulate
    from workshop.servers.records.record_file import ServerRecord


class Numbers(click.ParamType):
    """Numbers with commas between them."""

    name = "n,n,…"

    def __init__(self, number: type[int] | type[float]):
        self.number = number

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[float]:
        if isinstance(value, list):
            return value
        numbers = []
        for part in str(value).split(","):
            try:
                numbers.append(self.number(part))
            except ValueError:
                self.fail(f"{part[:40]!r} is not a number; write 1,4,16.", param, ctx)
        return numbers


LOAD = [
    click.Option(["--rates"], type=Numbers(float), help="Requests a second, one point for each."),
    click.Option(
        ["--concurrencies"],
        type=Numbers(int),
        help="Or: requests at once, one point for each.",
    ),
    click.Option(
        ["--sessions"],
        type=Numbers(int),
        help="Or: so many agents, whose prompts grow with each turn.",
    ),
    *SESSIONS,
    click.Option(
        ["--class", "learners"],
        type=click.IntRange(1, 500),
        help="Or: a class of so many learners, who run the cells of the notebooks.",
    ),
    click.Option(
        ["--seconds"],
        type=Seconds(10, 3600),
        help="Of a class: how long [10 s for each cell].",
    ),
    click.Option(
        ["--requests"],
        type=click.IntRange(1, 100_000),
        default=100,
        show_default=True,
        help="Requests of each point.",
    ),
    click.Option(
        ["--prompt"],
        type=Range(),
        default="256",
        show_default=True,
        help="Tokens of each prompt; they are random.",
    ),
    click.Option(
        ["--output"], type=Range(), default="64", show_default=True, help="Tokens of each answer."
    ),
    click.Option(
        ["--slo"], help="Limits, as ttft=500ms,tpot=50ms: counts the requests that meet them."
    ),
    click.Option(
        ["--seed"],
        type=int,
        help="Of all points, instead of a new one for each. The same seed again reads the prefix cache.",
    ),
]


@click.command(cls=PlanningCommand, params=LOAD)
@click.argument("server_name", metavar="[NAME]", required=False)
@click.option("--name", help="Name of a server that `workshop servers` lists; the same as NAME.")
@click.option("--url", help="Server, ending in /v1. Key: WORKSHOP_API_KEY.")
@click.option(
    "--gpu", help="The server's GPU: adds what `workshop simulate` predicts. Not for a CPU."
)
@click.option(
    "--predict/--no-predict", default=True, help="Simulate each point too.  [default: predict]"
)
@click.option("--plot", help="Draw the points into this new file (.svg).")
@click.option(
    "--read",
    "files",
    multiple=True,
    help="Instead: check result files of vllm bench serve.  Repeatable.",
)
@force_option()
@json_option(
    "{points: [{load, seed, tokens_per_s, ttft_ms, tpot_ms, e2el_ms, goodput_per_s, faults, predicted}]}"
)
def command(
    server_name: str | None,
    name: str | None,
    url: str | None,
    plot: str | None,
    files: tuple[str, ...],
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure a server, and name what could spoil the figures.

    Each point has new random prompts and a warm-up. Beside each figure stands the simulation's.
    A class of learners sends what the notebooks send; the exit code is 1 if the server does not
    hold it: a request fails, or 95 of 100 are not within the limits (--slo) [ttft=5s,e2el=30s].

    \b
      workshop bench --concurrencies 1,8,32
      workshop bench --sessions 10,40 --turns 5 --think 2 --tool 50:600
      workshop bench 70b --class 30
      workshop bench --url http://gpu17:8000/v1 --rates 1,4,16 --slo ttft=500ms,tpot=50ms --gpu h100
      workshop bench --read result.json
    """
    if files:
        _read_files(files, as_json)
        return
    from workshop.cli.use import bench_table
    from workshop.client import reach
    from workshop.files import check_output, output
    from workshop.simulate.report import parse_slo

    loads = _loads(options)
    parse_slo(options["slo"])
    if plot:
        check_output(plot, force=force)
    if server_name and name:
        raise BadInput("NAME and --name are both given.", "Give one of the two.")
    server = reach.record_at(server_name or name, url)
    model, root = _model(server)
    simulate = None
    if options["predict"] and loads:
        simulate = _simulation(server, root or model, options)
    measured = _measured(server, model, loads, simulate, options)
    if plot:
        from workshop.course.drawing import bench_points

        with output(plot, force=force) as file:
            file.write(bench_points.drawing(measured).encode(errors="backslashreplace"))
    if as_json:
        points = [point.to_dict() for point in measured]
        say_json({"model": model, "url": server.url, "points": points})
    else:
        say(bench_table.as_text(model, measured, simulate is not None))
    if not all(getattr(point, "holds", True) for point in measured):
        sys.exit(1)


command.params += simulated_options()  # after its own, in --help


def _loads(options: dict[str, Any]) -> list[Load | SessionLoad]:
    """Return the loads to measure; there are none for a class.

    Raises BadInput: not exactly one kind of load, or an option that is about another kind.
    """
    from workshop.measure import points

    rates, concurrencies, sessions = (
        options[name] or [] for name in ("rates", "concurrencies", "sessions")
    )
    has_class = options["learners"] is not None
    if sum(map(bool, (rates, concurrencies, sessions, has_class))) != 1:
        raise BadInput(
            "It is not clear how requests are sent.",
            "Give one of --rates 1,4,16 (requests a second), --concurrencies 1,8,64 (requests at once), "
            "--sessions 10,40 and --class 30.",
        )
    of_sessions = {str(option.name): options[str(option.name)] for option in SESSIONS}
    if not sessions:
        _refuse_options(of_sessions, "sessions", "--sessions 10,40")
    if not has_class:
        _refuse_options({"seconds": options["seconds"]}, "a class", "--class 30")
    if sessions:
        of_sessions["think_s"] = of_sessions.pop("think")
        for name in ("prompt", "output", "seed"):
            of_sessions[name] = options[name]
        return list(points.session_loads(sessions, of_sessions))
    if has_class:
        return []
    prompt_tokens = _exactly("--prompt", options["prompt"])
    output_tokens = _exactly("--output", options["output"])
    requests = options["requests"]
    return list(points.loads(rates, concurrencies, requests, prompt_tokens, output_tokens))


def _measured(
    server: ServerRecord,
    model: str,
    loads: list[Load | SessionLoad],
    simulate: Simulate | None,
    options: dict[str, Any],
) -> list[Point]:
    """Return a point for each load, or the one of a class."""
    from workshop.course.notebooks import class_steps
    from workshop.measure import classes, points

    slo, seed, learners = options["slo"], options["seed"], options["learners"]
    if learners is not None:
        with waiting(f"{learners} learners …"):
            point = classes.measure(
                server,
                model,
                learners,
                class_steps.of_learner,
                seconds=options["seconds"],
                slo=slo,
                seed=seed or 0,
            )
        return [point]
    measured = []
    for load in loads:
        with waiting(f"{load.name}: {load.requests} requests …"):
            measured.append(
                points.measure(server, model, load, slo=slo, seed=seed, simulate=simulate)
            )
    return measured


def _refuse_options(options: dict[str, Any], load: str, remedy: str) -> None:
    """Raise BadInput for an option of a load that is not measured."""
    for name, value in options.items():
        if value is not None:
            raise BadInput(f"--{name} is about {load}.", f"Say how many: {remedy}.")


def _exactly(name: str, tokens: tuple[int, int]) -> int:
    """Return the one length of random prompts or answers.

    Raises BadInput: a range, which sessions alone have.
    """
    if tokens[0] != tokens[1]:
        raise BadInput(
            f"{name} {tokens[0]}:{tokens[1]} is a range, and random prompts have one length.",
            f"Give one number, such as {name} {tokens[1]}; sessions take a range.",
        )
    return tokens[0]


def _model(server: ServerRecord) -> tuple[str, str | None]:
    """Return the name that requests give, and the model's folder or Hub id.

    Both are as the server names them.
    """
    from workshop.client import client

    models = client.Client(server).models()
    if not models:
        raise WorkshopError(f"{server.url} serves no model.", "Is this a vLLM server?")
    return models[0]["id"], models[0].get("root")


def _simulation(server: ServerRecord, model: str, options: dict[str, Any]) -> Simulate | None:
    from inference_planner.request import NAMES

    from workshop.measure import prediction
    from workshop.servers.host import gpus

    if options["gpu"]:
        settings = {name: value for name, value in options.items() if name in NAMES}
        return prediction.on_gpus(model, options["gpu"], settings)
    if server.where == "local" and not gpus.visible():
        with waiting("measuring the server's clock …"):
            return prediction.on_this_machine(server)
    return None


def _read_files(files: tuple[str, ...], as_json: bool) -> None:
    from workshop.cli.use import bench_table
    from workshop.measure import results

    measurements = results.read([Path(file) for file in files])
    if as_json:
        rows = [{**result.to_dict(), "unknown": results.unknown(result)} for result in measurements]
        say_json({"measurements": rows})
        return
    say(bench_table.text_of_files(measurements))

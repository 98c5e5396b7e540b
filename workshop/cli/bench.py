from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workshop.cli.plan import command as plan_command
from workshop.cli.say import Seconds, force_option, json_option, say, say_json, waiting
from workshop.cli.simulate import ENGINE, PLACE, Range
from workshop.errors import BadInput, WorkshopError

if TYPE_CHECKING:
    from workshop.measure.classes import ClassPoint
    from workshop.measure.points import Load, Point, SessionLoad, Simulate
    from workshop.servers.records.record_file import ServerRecord

HEADER = (
    f"{'':<14}{'tokens/s':>10}{'ttft p50':>10}{'p95':>9}{'tpot p50':>10}{'p95':>9}{'goodput/s':>11}"
)
PICTURE_WIDTH, PICTURE_HEIGHT = 900, 560  # pixels
PANELS = {"ttft": "TTFT p95, ms", "tpot": "TPOT p95, ms"}
GOODPUT = "goodput, requests per second"
PLAN_OPTIONS = [option for option in plan_command.params if option.name in (*PLACE, *ENGINE)]


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


@click.command
@click.argument("server_name", metavar="[NAME]", required=False)
@click.option("--name", help="Name of a server that `workshop servers` lists; the same as NAME.")
@click.option("--url", help="Server, ending in /v1. Key: WORKSHOP_API_KEY.")
@click.option("--rates", type=Numbers(float), help="Requests a second, one point for each.")
@click.option(
    "--concurrencies", type=Numbers(int), help="Or: requests at once, one point for each."
)
@click.option("--sessions", type=Numbers(int), help="Or: so many agents, whose prompts grow with each turn.")  # fmt: skip
@click.option("--class", "learners", type=click.IntRange(1, 500), help="Or: a class of so many learners, who run the cells of the notebooks.")  # fmt: skip
@click.option(
    "--seconds", type=Seconds(10, 3600), help="Of a class: how long [80: a cell every 10 s]."
)
@click.option("--turns", type=Range(), help="Of sessions: requests of each [3:6].")
@click.option("--think", "think_s", type=float, help="Of sessions: mean seconds from an answer to the next request [3].")  # fmt: skip
@click.option("--system", type=int, help="Of sessions: tokens that every prompt begins with [1024].")  # fmt: skip
@click.option("--tool", type=Range(), help="Of sessions: new tokens of each later turn [64:512]; --prompt is the first.")  # fmt: skip
@click.option("--requests", type=click.IntRange(1, 100_000), default=100, show_default=True, help="Requests of each point.")  # fmt: skip
@click.option("--prompt", type=Range(), default="256", show_default=True, help="Tokens of each prompt; they are random.")  # fmt: skip
@click.option("--output", "output_tokens", type=Range(), default="64", show_default=True, help="Tokens of each answer.")  # fmt: skip
@click.option("--slo", help="Limits, as ttft=500ms,tpot=50ms: counts the requests that meet them.")
@click.option("--seed", type=int, help="Of all points, instead of a new one for each. The same seed again reads the prefix cache.")  # fmt: skip
@click.option(
    "--gpu", help="The server's GPU: adds what `workshop simulate` predicts. Not for a CPU."
)
@click.option(
    "--predict/--no-predict", default=True, help="Simulate each point too.  [default: predict]"
)
@click.option("--plot", help="Draw the points into this new file (.svg).")
@click.option("--read", "files", multiple=True, help="Instead: check result files of vllm bench serve.  Repeatable.")  # fmt: skip
@force_option()
@json_option(
    "{points: [{load, seed, tokens_per_s, ttft_ms, tpot_ms, e2el_ms, goodput_per_s, faults, predicted}]}"
)
def command(
    server_name: str | None,
    name: str | None,
    url: str | None,
    rates: list[float] | None,
    concurrencies: list[int] | None,
    sessions: list[int] | None,
    learners: int | None,
    seconds: float | None,
    turns: tuple[int, int] | None,
    think_s: float | None,
    system: int | None,
    tool: tuple[int, int] | None,
    requests: int,
    prompt: tuple[int, int],
    output_tokens: tuple[int, int],
    slo: str | None,
    seed: int | None,
    gpu: str | None,
    predict: bool,
    plot: str | None,
    files: tuple[str, ...],
    force: bool,
    as_json: bool,
    **plan_options: Any,
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
    from workshop.files import check_output, output

    if files:
        _read_files(files, as_json)
        return
    from workshop.client import reach
    from workshop.course.notebooks import class_steps
    from workshop.measure import classes, points
    from workshop.simulate.report import parse_slo

    loads_chosen = [rates, concurrencies, sessions, learners is not None]
    if sum(map(bool, loads_chosen)) != 1:
        raise BadInput(
            "It is not clear how requests are sent.",
            "Give one of --rates 1,4,16 (requests a second), --concurrencies 1,8,64 (requests at once), "
            "--sessions 10,40 and --class 30.",
        )
    of_sessions = {"turns": turns, "think_s": think_s, "system": system, "tool": tool}
    loads: list[Load | SessionLoad] = []
    if sessions:
        of_sessions |= {"prompt": prompt, "output": output_tokens, "seed": seed}
        loads += points.session_loads(sessions, of_sessions)
    else:
        _refuse_options(of_sessions, "sessions", "--sessions 10,40")
    if learners is None:
        _refuse_options({"seconds": seconds}, "a class", "--class 30")
    if rates or concurrencies:
        prompt_tokens, answer_tokens = (
            _exactly("--prompt", prompt),
            _exactly("--output", output_tokens),
        )
        loads += points.loads(
            rates or [], concurrencies or [], requests, prompt_tokens, answer_tokens
        )
    parse_slo(slo)
    if plot:
        check_output(plot, force=force)
    if server_name and name:
        raise BadInput("NAME and --name are both given.", "Give one of the two.")
    server = reach.record_at(server_name or name, url)
    model, root = _model(server)
    simulate = None
    if predict and learners is None:
        simulate = _simulation(server, root or model, gpu, plan_options)
    measured: list[Point] = []
    if learners is not None:
        with waiting(f"{learners} learners …"):
            measured.append(
                classes.measure(
                    server,
                    model,
                    learners,
                    class_steps.of_learner,
                    seconds=seconds,
                    slo=slo,
                    seed=seed or 0,
                )
            )
    for load in loads:
        with waiting(f"{load.name}: {load.requests} requests …"):
            measured.append(
                points.measure(server, model, load, slo=slo, seed=seed, simulate=simulate)
            )
    rows = [point.to_dict() for point in measured]
    if plot:
        with output(plot, force=force) as file:
            file.write(drawing(measured).encode(errors="backslashreplace"))
    if as_json:
        say_json({"model": model, "url": server.url, "points": rows})
    else:
        say(as_text(model, measured, simulate is not None))
    if not all(getattr(point, "holds", True) for point in measured):
        sys.exit(1)


command.params += PLAN_OPTIONS  # after its own, in --help


def _refuse_options(options: dict[str, Any], load: str, remedy: str) -> None:
    """Raise BadInput for an option of a load that is not measured."""
    for name, value in options.items():
        if value is not None:
            raise BadInput(
                f"--{name.removesuffix('_s')} is about {load}.", f"Say how many: {remedy}."
            )


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


def _simulation(
    server: ServerRecord, model: str, gpu: str | None, plan_options: dict[str, Any]
) -> Simulate | None:
    from workshop.measure import prediction

    if gpu:
        options = {key: value for key, value in plan_options.items() if value is not None}
        return prediction.on_gpus(model, gpu, options)
    if server.where == "local" and not _uses_a_gpu():
        with waiting("measuring the server's clock …"):
            return prediction.on_this_machine(server)
    return None


def _uses_a_gpu() -> bool:
    from workshop.servers.host import gpus

    return bool(gpus.visible())


def as_text(model: str, measured: list[Point], predicts: bool) -> str:
    """Return the table of the points, with the simulation's line below each, and their faults."""
    from workshop.measure.classes import ClassPoint
    from workshop.measure.points import Load

    classes = [point for point in measured if isinstance(point, ClassPoint)]
    texts = "sessions of random texts"
    sound = "No lost prefixes, no other client, a client that kept up, and enough requests."
    if classes:
        texts = "the cells of the notebooks"
        sound = "No errors, no other client, and a client that kept up."
    elif isinstance(measured[0].load, Load):
        texts = "random prompts"
        sound = sound.replace("lost prefixes", "prefix-cache hits")
    lines = [f"{model}: milliseconds, {texts}", HEADER]
    for point in measured:
        figures = {f"{name}_ms": values for name, values in point.figures.items()}
        lines.append(_row(point.load.name, point.tokens_per_s, figures, point.goodput_per_s))
        if point.predicted:
            predicted = point.predicted
            goodput = predicted["goodput_per_s"]
            lines.append(_row("  simulated", predicted["tokens_per_s"], predicted, goodput))
    for point in measured:
        if isinstance(point, ClassPoint):
            lines += _waits(point)
        elif not isinstance(point.load, Load):
            lines.append(_hits(point))
    if not (predicts or classes):
        lines.append("· No simulation: give --gpu, the kind of GPU that the server has.")
    for point in measured:
        if point.energy:
            lines.append(f"· {point.load.name}: {point.energy}")
    faults = [
        f"✗ {point.load.name}: {fault.sentence}" for point in measured for fault in point.faults
    ]
    lines += faults or [f"✓ {sound}"]
    lines += [_verdict(point) for point in classes]
    return "\n".join(lines)


def _waits(point: ClassPoint) -> list[str]:
    """Return the lines about how long learners waited in each step."""
    lines = [f"{'':<28}{'requests':>10}{'ttft p50':>10}{'p95':>9}{'e2el p50':>10}{'p95':>9}"]
    for step in point.steps:
        line = f"  {step.name:<26}{step.requests:>10,}"
        for figures in (step.ttft_ms, step.e2el_ms):
            line += f"{_shown(figures['p50'], ',.1f'):>10}{_shown(figures['p95'], ',.1f'):>9}"
        lines.append(line)
    for name in point.left_out:
        lines.append(f"· {name}: this server does not take it, so nobody ran it")
    return lines


def _verdict(point: ClassPoint) -> str:
    """Return whether the server holds the class, why not, and what to do."""
    waited = []
    for measure, limit_ms in point.limits.items():
        p95_ms = point.figures[measure]["p95"]
        if p95_ms is not None:
            waited.append(f"p95 {measure} {p95_ms / 1e3:.1f} s (limit {limit_ms / 1e3:g} s)")
    figures = ", ".join([f"{sum(point.errors.values()):,} errors", *waited])
    if point.holds:
        return f"✓ It will hold {point.load.name}: {figures}."
    slowest = max(point.steps, key=lambda step: step.e2el_ms["p95"] or 0.0)
    return (
        f"✗ It will not hold {point.load.name}: {figures}.\n"
        f"→ The slowest cell is “{slowest.name}”: let half of the class run it first, or share a second server "
        "(`workshop serve --name second`, or `workshop slurm submit`) with each half."
    )


def _shown(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _hits(point: Point) -> str:
    """Return the line about the prefix cache of a point of sessions."""
    measured = "unknown"
    if point.prefix_hit_share is not None:
        measured = f"{point.prefix_hit_share:.1%}"
    line = f"· {point.load.name}: {measured} of the prompts' tokens came from the prefix cache"
    if point.predicted:
        line += f"; simulated {point.predicted['prefix_hit_share']:.1%}"
    return line + "."


def _row(name: str, tokens_per_s: float, figures: dict[str, Any], goodput: float | None) -> str:
    cells = f"{name:<14}{tokens_per_s:>10,.0f}"
    for measure, width in (("ttft_ms", 10), ("tpot_ms", 10)):
        for percentile, more in (("p50", 0), ("p95", -1)):
            shown = _shown(figures[measure][percentile], ",.1f")
            cells += f"{shown:>{width + more}}"
    return f"{cells}{_shown(goodput, '.2f'):>11}"


def drawing(measured: list[Point]) -> str:
    """Return the points as SVG, measured and simulated, over the load.

    The panels are tokens/s, TTFT, TPOT and, with an SLO, goodput. One without values is left out.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.style import context

    from workshop.course.drawing.figure import STYLE, draw, svg

    curves = _curves(measured)
    with context(STYLE):
        layout = ConstrainedLayoutEngine(hspace=0.08)
        picture = Figure(figsize=(PICTURE_WIDTH / 72, PICTURE_HEIGHT / 72), layout=layout)
        picture.suptitle(
            "What the server answered at each load", x=0.01, ha="left", size=15, weight="bold"
        )
        for place, (panel, lines) in enumerate(curves.items(), 1):
            axes = picture.add_subplot(2, 2, place)
            axes.set_title(panel, size=13)
            axes.set_xlabel(measured[0].load.counts)
            draw(axes, lines, "line")
    return svg(picture, alone=True)


def _curves(measured: list[Point]) -> dict[str, dict[str, dict[float, float]]]:
    """Return {panel: {"measured" or "simulated": {amount of the load: value}}}."""
    curves: dict[str, dict[str, dict[float, float]]] = {}

    def add(panel: str, line: str, amount: float, value: float | None) -> None:
        if value is not None:
            curves.setdefault(panel, {}).setdefault(line, {})[amount] = value

    for point in measured:
        amount = point.load.amount
        add("tokens/s", "measured", amount, point.tokens_per_s)
        for name, panel in PANELS.items():
            add(panel, "measured", amount, point.figures[name]["p95"])
        add(GOODPUT, "measured", amount, point.goodput_per_s)
        predicted = point.predicted
        if predicted is None:
            continue
        add("tokens/s", "simulated", amount, predicted["tokens_per_s"])
        for name, panel in PANELS.items():
            add(panel, "simulated", amount, predicted[f"{name}_ms"]["p95"])
        add(GOODPUT, "simulated", amount, predicted["goodput_per_s"])
    return curves


def _read_files(files: tuple[str, ...], as_json: bool) -> None:
    from workshop.measure import results

    measurements = results.read([Path(file) for file in files])
    if as_json:
        rows = []
        for measurement in measurements:
            rows.append({**measurement.to_dict(), "unknown": results.unknown(measurement)})
        say_json({"measurements": rows})
        return
    lines = [HEADER]
    for measurement in measurements:
        figures = {f"{name}_ms": values for name, values in measurement.figures.items()}
        lines.append(_row(measurement.name[:14], measurement.tokens_per_s or 0.0, figures, None))
        lines.append(f"  {measurement.requests} requests, {measurement.source}")
        for fault in measurement.faults:
            lines.append(f"✗ {fault.sentence}")
        for sentence in results.unknown(measurement):
            lines.append(f"? {sentence}")
    say("\n".join(lines))

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workshop.cli.plan import command as plan_command
from workshop.cli.say import force_option, json_option, say, say_json, waiting
from workshop.cli.simulate import ENGINE, PLACE, Range
from workshop.errors import BadInput, WorkshopError

if TYPE_CHECKING:
    from workshop.servers.record_file import ServerRecord
    from workshop.simulate.bench.points import Load, Point
    from workshop.simulate.bench.prediction import Simulate
    from workshop.simulate.sessions import Sessions

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
@click.option("--name", help="Name of a server that `workshop servers` lists, where several run.")
@click.option("--url", help="Server, ending in /v1. Key: WORKSHOP_API_KEY.")
@click.option("--rates", type=Numbers(float), help="Requests a second, one point for each.")
@click.option(
    "--concurrencies", type=Numbers(int), help="Or: requests at once, one point for each."
)
@click.option("--sessions", type=Numbers(int), help="Or: so many agents, whose prompts grow with each turn.")  # fmt: skip
@click.option("--turns", type=Range(), help="Of sessions: requests of each [3:6].")
@click.option("--think", "think_s", type=float, help="Of sessions: mean seconds from an answer to the next request [3].")  # fmt: skip
@click.option("--system", type=int, help="Of sessions: tokens that every prompt begins with [1024].")  # fmt: skip
@click.option("--tool", type=Range(), help="Of sessions: new tokens of each later turn [64:512]; --prompt is the first.")  # fmt: skip
@click.option("--requests", default=100, show_default=True, help="Requests of each point.")
@click.option("--prompt", type=Range(), default="256", show_default=True, help="Tokens of each prompt; they are random.")  # fmt: skip
@click.option("--output", "output_tokens", type=Range(), default="64", show_default=True, help="Tokens of each answer.")  # fmt: skip
@click.option("--slo", help="Limits, as ttft=500ms,tpot=50ms: counts the requests that meet them.")
@click.option("--seed", type=int, help="Of all points, instead of a new one for each. The same seed again reads the prefix cache.")  # fmt: skip
@click.option("--tokenizer", help="Folder or Hub id, where the server's model folder is not here.")
@click.option(
    "--gpu", help="The server's GPU: adds what `workshop simulate` predicts. Not for a CPU."
)
@click.option(
    "--predict/--no-predict", default=True, help="Simulate each point too.  [default: predict]"
)
@click.option("--plot", help="Draw the points into this new file (.svg); - is standard output.")
@click.option("--read", "files", multiple=True, help="Instead: check result files of vllm bench serve.  Repeatable.")  # fmt: skip
@force_option()
@json_option(
    "{points: [{load, seed, tokens_per_s, ttft_ms, tpot_ms, e2el_ms, goodput_per_s, faults, predicted}]}"
)
def command(
    name: str | None,
    url: str | None,
    rates: list[float] | None,
    concurrencies: list[int] | None,
    sessions: list[int] | None,
    turns: tuple[int, int] | None,
    think_s: float | None,
    system: int | None,
    tool: tuple[int, int] | None,
    requests: int,
    prompt: tuple[int, int],
    output_tokens: tuple[int, int],
    slo: str | None,
    seed: int | None,
    tokenizer: str | None,
    gpu: str | None,
    predict: bool,
    plot: str | None,
    files: tuple[str, ...],
    force: bool,
    as_json: bool,
    **plan_options: Any,
) -> None:
    """Measure a server with `vllm bench serve`, and name what could spoil the figures.

    Each point has new random prompts and a warm-up. Beside each figure stands the simulation's.

    \b
      workshop bench --concurrencies 1,8,32
      workshop bench --sessions 10,40 --turns 5 --think 2 --tool 50:600
      workshop bench --url http://gpu17:8000/v1 --rates 1,4,16 --slo ttft=500ms,tpot=50ms --gpu h100
      workshop bench --read result.json
    """
    from workshop.files import check_output, is_stream, output

    if files:
        _read_files(files, as_json)
        return
    from workshop.simulate.bench import conversations, points
    from workshop.simulate.report import parse_slo

    of_sessions = {"turns": turns, "think_s": think_s, "system": system, "tool": tool}
    agents: list[Sessions] = []
    loads: list[Load] = []
    if sessions:
        if rates or concurrencies:
            raise BadInput(
                "Sessions send a turn when the answer before it has come: they have no rate.",
                "Give --sessions alone, or --rates or --concurrencies.",
            )
        of_sessions |= {"prompt": prompt, "output": output_tokens, "seed": seed}
        agents = conversations.loads(sessions, of_sessions)
    else:
        _refuse_session_options(of_sessions)
        prompt_tokens, answer_tokens = (
            _exactly("--prompt", prompt),
            _exactly("--output", output_tokens),
        )
        loads = points.loads(
            rates or [], concurrencies or [], requests, prompt_tokens, answer_tokens
        )
    parse_slo(slo)
    if plot:
        check_output(plot, force=force, inputs=[])
    server = _server(name, url)
    model, root = _model(server)
    vocabulary = points.tokenizer_of(server, root, tokenizer) if loads else ""
    simulate = None
    if predict:
        simulate = _simulation(server, root or model, gpu, plan_options)
    measured = []
    for options in agents:
        with waiting(f"{options.sessions} sessions …"):
            measured.append(
                conversations.measure(server, model, options, slo=slo, simulate=simulate)
            )
    if loads:
        measured = _measure_random(server, model, vocabulary, loads, slo, seed, simulate)
    rows = [point.to_dict() for point in measured]
    if plot:
        with output(plot, force=force, inputs=[]) as file:
            file.write(drawing(measured).encode(errors="backslashreplace"))
    to_stderr = plot is not None and is_stream(plot)  # standard output has the drawing
    if as_json:
        say_json({"model": model, "url": server.url, "points": rows}, err=to_stderr)
    else:
        say(as_text(model, measured, simulate is not None), err=to_stderr)


command.params += PLAN_OPTIONS  # after its own, in --help


def _measure_random(
    server: ServerRecord,
    model: str,
    vocabulary: str,
    loads: list[Load],
    slo: str | None,
    seed: int | None,
    simulate: Simulate | None,
) -> list[Point]:
    """Return a point for each load of random prompts, all sent by one process."""
    from workshop.simulate.bench import points
    from workshop.simulate.bench.client import Client

    measured = []
    with Client(server) as sender:
        for load in loads:
            with waiting(f"{load.name}: {load.requests} requests …"):
                point = points.measure(
                    server, model, vocabulary, load, slo=slo, seed=seed, sender=sender
                )
                measured.append(_with_prediction(point, load, slo, simulate))
    return measured


def _refuse_session_options(of_sessions: dict[str, Any]) -> None:
    for name, value in of_sessions.items():
        if value is not None:
            raise BadInput(
                f"--{name.removesuffix('_s')} is about sessions.",
                "Say how many: --sessions 10,40.",
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


def _server(name: str | None, url: str | None) -> ServerRecord:
    from workshop.client import reach

    if name and url:
        raise BadInput("--name and --url are both given.", "Give one of the two.")
    if url:
        return reach.record_of_address(url, "--url")
    try:
        return reach.find(name)
    except reach.SeveralServers as error:
        raise BadInput(str(error), error.command_remedy) from None


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
    from workshop.simulate.bench import prediction

    if gpu:
        options = {key: value for key, value in plan_options.items() if value is not None}
        return prediction.on_gpus(model, gpu, options)
    if server.where == "local" and not _uses_a_gpu():
        with waiting("measuring the server's clock …"):
            return prediction.on_this_machine(server)
    return None


def _uses_a_gpu() -> bool:
    from workshop.servers import gpus

    return bool(gpus.visible())


def _with_prediction(point: Point, load: Load, slo: str | None, simulate: Simulate | None) -> Point:
    from dataclasses import replace

    from workshop.simulate.bench import prediction
    from workshop.simulate.report import parse_slo

    if simulate is None:
        return point
    predicted = prediction.predict(simulate, load, point.seed, parse_slo(slo))
    return replace(point, predicted=predicted)


def as_text(model: str, measured: list[Point], predicts: bool) -> str:
    """Return the table of the points, with the simulation's line below each, and their faults."""
    from workshop.simulate.bench.points import Load

    random_prompts = isinstance(measured[0].load, Load)
    texts = "sessions of random texts"
    if random_prompts:
        texts = "random prompts"
    lines = [f"{model}: milliseconds, {texts}", HEADER]
    for point in measured:
        figures = {f"{name}_ms": values for name, values in point.figures.items()}
        lines.append(_row(point.load.name, point.tokens_per_s, figures, point.goodput_per_s))
        if point.predicted:
            predicted = point.predicted
            goodput = predicted["goodput_per_s"]
            lines.append(_row("  simulated", predicted["tokens_per_s"], predicted, goodput))
    if not random_prompts:
        lines += [_hits(point) for point in measured]
    if not predicts:
        lines.append("· No simulation: give --gpu, the kind of GPU that the server has.")
    for point in measured:
        if point.energy:
            lines.append(f"· {point.load.name}: {point.energy}")
    sound = True
    for point in measured:
        for fault in point.faults:
            sound = False
            lines.append(f"✗ {point.load.name}: {fault.sentence}")
    if sound:
        hits = "No prefix-cache hits" if random_prompts else "No lost prefixes"
        lines.append(
            f"✓ {hits}, no other client, the right process, a client that kept up, and enough requests."
        )
    return "\n".join(lines)


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
            value = figures[measure][percentile]
            shown = "–" if value is None else format(value, ",.1f")
            cells += f"{shown:>{width + more}}"
    shown = "–" if goodput is None else format(goodput, ".2f")
    return f"{cells}{shown:>11}"


def drawing(measured: list[Point]) -> str:
    """Return the points as SVG, measured and simulated, over the load.

    The panels are tokens/s, TTFT, TPOT and, with an SLO, goodput. One without values is left out.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.style import context

    from workshop.course.figure import STYLE, draw, svg

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
    from workshop.simulate.bench import results

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

"""Shows the choices of `workshop simulate --search`, as a table and as a drawing."""

from workshop.simulate.choices import Choice


def as_text(choices: list[Choice]) -> str:
    """Return the table of the choices: a line each, with the command that serves it."""
    lines = [f"{'GPUs':>5}{'within':>8}{'ttft p95':>10}{'tpot p95':>10}{'$/M tokens':>12}  command"]
    for choice in choices:
        simulation = choice.simulation
        ttft_ms = simulation.of("ttft")["p95"] or 0
        tpot_ms = simulation.of("tpot")["p95"] or 0
        cost = "–"
        if choice.usd_per_million_tokens is not None:
            cost = f"{choice.usd_per_million_tokens:.2f}"
        command = simulation.command
        if simulation.replicas > 1:
            command = f"{simulation.replicas} × {command}"
        times = f"{ttft_ms:>7,.0f} ms{tpot_ms:>7,.1f} ms"
        lines.append(f"{choice.gpus:>5}{choice.share:>8.0%}{times}{cost:>12}  {command}")
    return "\n".join(lines)


def drawing(choices: list[Choice]) -> str:
    """Return the choices as SVG: what they cost against how long the first token takes."""
    from workshop.course.drawing.figure import figure, svg

    unit = "GPUs"
    if choices[0].usd_per_million_tokens is not None:
        unit = "US dollars a million tokens"
    cost: dict[float, float] = {}
    names: dict[float, str] = {}
    for choice in sorted(choices, key=lambda choice: choice.simulation.of("ttft")["p95"] or 0):
        ttft_ms = choice.simulation.of("ttft")["p95"] or 0
        cost[ttft_ms] = choice.usd_per_million_tokens or choice.gpus
        names[ttft_ms] = f"{choice.gpus} GPUs, {choice.share:.0%}"
    title = "What no other choice beats: fewer GPUs, or a shorter wait"
    drawn = figure(
        cost,
        names=list(names.values()),
        xlabel="first token, p95, ms",
        ylabel=unit,
        title=title,
    )
    return svg(drawn, alone=True)

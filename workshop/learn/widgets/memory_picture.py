"""The picture of the memory sliders: a bar for each GPU, the verdict, four numbers, the command. Pure: text out."""

from __future__ import annotations

import html

from workshop.errors import WorkshopError
from workshop.learn.widgets import style
from workshop.learn.widgets.memory_case import Memory, Stage, command, verdict
from workshop.plan.catalog import load_gpu
from workshop.plan.catalog.gpus import GIB

BARS = 8           # GPUs beyond so many are drawn a stage at a time
SIGNS = {"fits": ("✓", style.GOOD), "waits": ("!", style.ORANGE), "refused": ("✗", style.BAD)}
HATCH = f"repeating-linear-gradient(45deg,{style.BAD} 0 4px,transparent 4px 10px)"


def memory_html(result: Memory) -> str:
    """Return the whole picture as HTML."""
    label = html.escape(spoken(result), quote=True)
    # A picture is one thing to a screen reader: the command, which is to be copied, stands outside of it.
    return (style.panel(_verdict(result) + _bars(result) + _legend() + _tiles(result), label=label)
            + style.panel(_command(result)))


def error_html(error: WorkshopError) -> str:
    """Return what is wrong and the remedy, in the place of the picture."""
    return style.panel(f'<div role="alert" style="border-left:4px solid {style.BAD};padding:6px 12px">'
                       f"<b>✗ {html.escape(error.message)}</b><br>→ {html.escape(error.remedy)}</div>")


def spoken(result: Memory) -> str:
    """Return the picture in words, for screen readers."""
    stage = result.tightest
    return (f"Memory of {result.case.model} on {result.case.gpus} {load_gpu(result.case.gpu).title}. {verdict(result)} "
            f"On one GPU: weights {_gib(stage.weights)}, overhead {_gib(stage.overhead)}, KV cache asked for "
            f"{_gib(stage.asked)}, room for KV cache {_gib(max(0, stage.room))}, limit {_gib(result.limit_bytes)} "
            f"of {_gib(result.gpu_bytes)}.")


def _verdict(result: Memory) -> str:
    sign, colour = SIGNS[result.state]
    head, _, remedy = verdict(result).partition(" Nearest remedy: ")
    more = f'<div style="margin-top:2px">→ Nearest remedy: <b>{html.escape(remedy)}</b></div>' if remedy else ""
    return (f'<div style="border-left:5px solid {colour};padding:4px 12px;margin:0 0 12px;min-height:46px">'
            f'<b style="color:{colour};font-size:16px">{sign}</b> <b>{html.escape(head)}</b>{more}</div>')


def _bars(result: Memory) -> str:
    """One bar a GPU on one axis: as long as the GPU, or as what is asked for if that is more."""
    most = max(s.needed for s in result.stages)
    axis = max(result.gpu_bytes * 1.01, min(most, 2.2 * result.gpu_bytes))
    if result.case.gpus <= BARS:
        rows = [(f"GPU {n}", s) for s in result.stages for n in range(s.gpus[0], s.gpus[1] + 1)]
    else:
        rows = [(f"GPU {s.gpus[0]}–{s.gpus[1]}" if s.gpus[0] < s.gpus[1] else f"GPU {s.gpus[0]}", s)
                for s in _spread(result.stages)]
    height = 40 if len(rows) == 1 else 30 if len(rows) == 2 else 20 if len(rows) <= 4 else 15
    body = "".join(_row(name, s, result, axis, height) for name, s in rows)
    left_out = len(result.stages) - len(rows) if result.case.gpus > BARS else 0
    note = f'<div style="{_small()};margin-left:88px">… and {left_out} stages like these</div>' if left_out > 0 else ""
    return _scale(result, axis) + body + note


def _spread(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    return stages if len(stages) <= BARS else (*stages[:BARS - 1], stages[-1])


def _scale(result: Memory, axis: float) -> str:
    """What stands above the bars: how long the GPU is, and how much of it vLLM may use."""
    title = html.escape(load_gpu(result.case.gpu).title)
    share = result.case.gpu_memory_utilization
    return (f'<div style="position:relative;height:34px;margin-left:88px;font-size:12px">'
            f'<span style="position:absolute;left:0;top:0;color:{style.MUTED}">{title}: the engine sees '
            f"<b>{_gib(result.gpu_bytes)}</b></span>"
            f'<span style="position:absolute;top:16px;right:calc(100% - {_percent(result.limit_bytes, axis)});'
            f'white-space:nowrap">× {share:g} = vLLM may use <b>{_gib(result.limit_bytes)}</b> ▾</span></div>')


def _row(name: str, s: Stage, result: Memory, axis: float, height: int) -> str:
    parts = [_piece(0, result.gpu_bytes, axis, f"border:1px solid {style.GREY};border-radius:3px;opacity:.6;"
                    f"background:{style.FREE}")]
    at = 0
    for size, colour, what, ink in ((s.weights, style.WEIGHTS, "weights", "#fff"),
                                    (s.overhead, style.OVERHEAD, "overhead", "#000"),
                                    (s.used, style.KV_CACHE, "KV in use", "#000"),
                                    (s.room - s.asked, "transparent", "KV free", style.TEXT)):
        shown = max(0, min(size, result.limit_bytes - at))
        if shown > 0:
            # Where both do not stand on the one visible line, the number wraps below it; the title has both.
            text = f"{what} {_gib(size).replace(' ', '&nbsp;')}" if height >= 20 and shown > axis * 0.18 else ""
            parts.append(_piece(at, shown, axis, f"background:{colour};color:{ink};line-height:{height}px;"
                                f"font-size:12px;overflow:hidden;padding-left:6px",
                                f"{what}: {_gib(size)}", text))
        at += shown
    over = s.needed - result.limit_bytes
    if over > 0:
        cut = "▶" if s.needed > axis else ""
        parts.append(_piece(result.limit_bytes, min(over, axis - result.limit_bytes), axis,
                            f"background:{HATCH};border:1px solid {style.BAD};color:{style.BAD};text-align:right;"
                            f"line-height:{height - 2}px", f"{_gib(over)} too much", cut))
    parts.append(f'<span style="position:absolute;left:{_percent(result.limit_bytes, axis)};top:-3px;bottom:-3px;'
                 f'width:2px;background:{style.TEXT}"></span>')
    return (f'<div style="display:flex;align-items:center;margin:5px 0"><span style="width:82px;margin-right:6px;'
            f'text-align:right;font-size:12px;color:{style.MUTED}">{name}</span><span style="position:relative;flex:1;'
            f'height:{height}px">{"".join(parts)}</span></div>')


def _piece(start: float, size: float, axis: float, css: str, title: str = "", text: str = "") -> str:
    tip = f' title="{title}"' if title else ""
    return (f'<span{tip} style="position:absolute;top:0;bottom:0;left:{_percent(start, axis)};'
            f'width:{_percent(size, axis)};box-sizing:border-box;{css}">{text}</span>')


def _legend() -> str:
    items = ((style.WEIGHTS, "weights"), (style.OVERHEAD, "overhead (activations, kernels, buffers)"),
             (style.KV_CACHE, "KV cache of your requests"), (style.FREE, "KV cache still free"), (HATCH, "too much"))
    chips = "".join(f'<span style="white-space:nowrap;margin-right:14px"><span style="display:inline-block;width:12px;'
                    f'height:12px;border-radius:2px;background:{colour};border:1px solid {style.GREY};'
                    f'vertical-align:-2px;margin-right:5px"></span>{name}</span>' for colour, name in items)
    return f'<div style="{_small()};margin:8px 0 12px 88px">{chips}</div>'


def _tiles(result: Memory) -> str:
    stage, case = result.tightest, result.case
    total = sum(s.weights * result.tp for s in result.stages)
    fits = result.state != "refused"
    tiles = ((_gib(stage.weights), "weights on a GPU", f"{_gib(total)} in all; {result.weight_kind}"),
             (_gib(max(0, stage.room)), "room for KV cache on a GPU",
              f"{_kib(result.kv_bytes_per_token)} a token, over the whole model"),
             (f"{result.tokens:,}" if fits else "0", "tokens of KV cache", "vLLM's log: “GPU KV cache size”"),
             (f"{result.max_concurrency:.2f}×" if fits else "0×", f"requests of {case.context:,} tokens",
              "vLLM's log: “Maximum concurrency”"))
    cells = "".join(f'<div style="border:1px solid {style.LINE};border-radius:6px;padding:6px 10px">'
                    f'<div style="font-size:19px;font-weight:600;font-variant-numeric:tabular-nums">{big}</div>'
                    f'<div style="font-size:12px">{what}</div><div style="{_small()}">{html.escape(more)}</div></div>'
                    for big, what, more in tiles)
    return (f'<div style="display:grid;grid-template-columns:repeat(2,1fr);gap:8px">'
            f"{cells}</div>")


def _command(result: Memory) -> str:
    return (f'<pre style="font-family:{style.MONO};font-size:12px;margin:10px 0 0;padding:8px 10px;'
            f'border:1px solid {style.LINE};border-radius:6px;white-space:pre-wrap;overflow-wrap:anywhere;'
            f'color:{style.TEXT};background:transparent">{html.escape(command(result))}</pre>')


def _small() -> str:
    return f"font-size:12px;color:{style.MUTED}"


def _percent(size: float, axis: float) -> str:
    return f"{100 * size / axis:.3f}%"


def _gib(size: float) -> str:
    value = size / GIB
    return f"{value:,.0f} GiB" if value >= 100 else f"{value:.1f} GiB"


def _kib(size: int) -> str:
    return f"{size / 1024:,.1f} KiB".replace(".0 ", " ")

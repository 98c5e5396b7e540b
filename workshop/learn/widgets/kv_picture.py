"""The picture of the KV growth: the pool of blocks, each request's own list of blocks, the bytes. Pure: text out."""

from __future__ import annotations

import html

from workshop.learn.widgets import style
from workshop.learn.widgets.kv_case import State, reserved_tokens
from workshop.plan.catalog.config import ModelConfig
from workshop.plan.kv_cache import BLOCK_SIZE, kv_cache_bytes_per_token, layer_token_elements

COLOURS = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.SKY, style.VERMILLION)
INKS = ("#fff", "#000", "#fff", "#000", "#000", "#fff")
EMPTY = "var(--jp-layout-color2, #eeeeee)"     # lighter than FREE: many boxes stand side by side
SLOTS = ("repeating-linear-gradient(to right,transparent 0,transparent calc(6.25% - 1px),rgba(127,127,127,.3) "
         "calc(6.25% - 1px),rgba(127,127,127,.3) 6.25%)")
SIGNS = {"coming": "not yet here", "waiting": "waits", "running": "runs", "preempted": "preempted, waits",
         "finished": "✓ finished"}


def growth_html(state: State, model: ModelConfig, last_event: str = "") -> str:
    """Return the whole picture; `last_event` is said while nothing new happens."""
    label = html.escape(spoken(state, model), quote=True)
    return style.panel(_head(state, model, last_event) + _pool(state) + _requests(state) + _foot(state, model),
                       label=label)


def spoken(state: State, model: ModelConfig) -> str:
    """Return the picture in words, for screen readers."""
    each = [f"{s.request.name} {SIGNS[s.state]}, {s.tokens} tokens in {len(s.blocks)} blocks" for s in state.requests]
    return (f"Step {state.step}. {state.used} of {len(state.pool)} blocks used, {state.tokens} tokens, "
            f"{size(state.tokens * kv_cache_bytes_per_token(model))}. {'. '.join(each)}. {state.event}")


def _head(state: State, model: ModelConfig, last_event: str) -> str:
    """The counters, a bar of the whole pool, and what happened."""
    each = kv_cache_bytes_per_token(model)
    full = state.used == len(state.pool)
    share = 100 * state.used / len(state.pool)
    numbers = ((f"{state.tokens:,}", "tokens in the cache"),
               (size(state.tokens * each), f"× {each:,} bytes a token"),
               (f"{state.used} of {len(state.pool)}", "blocks taken"))
    tiles = "".join(f'<div><div style="font-size:20px;font-weight:600;font-variant-numeric:tabular-nums">{big}</div>'
                    f'<div style="font-size:12px;color:{style.MUTED}">{small}</div></div>' for big, small in numbers)
    colour = style.BAD if full else style.KV_CACHE
    said = state.event or last_event
    ink = style.TEXT if state.event else style.MUTED
    warn = f'<b style="color:{style.BAD}">FULL</b> ' if full else ""
    return (f'<div style="display:grid;grid-template-columns:repeat(3,1fr);gap:8px">{tiles}</div>'
            f'<div style="height:8px;border-radius:4px;background:{style.FREE};margin:8px 0 6px;overflow:hidden">'
            f'<div style="height:8px;width:{share:.2f}%;background:{colour}"></div></div>'
            f'<div style="min-height:40px;font-size:13px;color:{ink}">{warn}{html.escape(said)}</div>')


def _pool(state: State) -> str:
    cells = "".join(_block(number, held) for number, held in enumerate(state.pool))
    return (f'<div style="font-size:12px;color:{style.MUTED};margin:2px 0 4px">The pool: one box is a block of '
            f'{BLOCK_SIZE} tokens, in every layer</div>'
            f'<div style="display:grid;grid-template-columns:repeat(8,1fr);gap:4px">{cells}</div>')


def _block(number: int, held: tuple[int, int] | None) -> str:
    if held is None:
        fill, name, ink = f"linear-gradient({EMPTY},{EMPTY})", "", style.MUTED
    else:
        index, filled = held
        part = 100 * filled / BLOCK_SIZE
        colour = COLOURS[index % len(COLOURS)]
        fill = f"linear-gradient(to right,{colour} {part:.2f}%,{EMPTY} {part:.2f}%)"
        # Black or white reads on the colour; a block that is hardly filled shows its name on the free part.
        name, ink = "ABCDEF"[index % 6], INKS[index % len(INKS)] if filled >= 5 else style.TEXT
    return (f'<span style="position:relative;height:26px;border-radius:3px;background:{SLOTS},{fill};'
            f'box-sizing:border-box;border:1px solid {style.LINE};color:{ink};font-size:11px;line-height:24px;'
            f'padding-left:5px;font-weight:600;overflow:hidden">{name}<span style="position:absolute;right:4px;'
            f'font-weight:400;opacity:.75;font-size:9px;color:{_number_ink(held)}">{number}</span></span>')


def _number_ink(held: tuple[int, int] | None) -> str:
    return INKS[held[0] % len(INKS)] if held and held[1] >= 14 else style.TEXT


def _requests(state: State) -> str:
    """A row a request: what it is doing, how far it is, and its blocks in its own order."""
    rows = []
    for index, s in enumerate(state.requests):
        colour = COLOURS[index % len(COLOURS)]
        total = s.request.prompt + s.request.output
        done = 100 * (s.request.prompt + s.generated) / total if s.state not in ("coming", "waiting") else 0
        table = " ".join(map(str, s.blocks)) or "–"
        muted = style.MUTED if s.state in ("coming", "finished") else style.TEXT
        again = f" ({s.preemptions}× preempted)" if s.preemptions else ""
        rows.append(
            f'<b style="color:{colour}">{s.request.name}</b><span style="color:{muted};white-space:nowrap">'
            f"{SIGNS[s.state]}{again}</span>"
            f'<span style="background:{style.FREE};height:8px;border-radius:4px;overflow:hidden">'
            f'<span style="display:block;height:8px;width:{done:.1f}%;background:{colour}"></span></span>'
            f'<span style="white-space:nowrap;font-variant-numeric:tabular-nums">{s.tokens} tokens</span>'
            f'<span style="font-family:{style.MONO};font-size:11px;color:{muted};overflow-wrap:anywhere">{table}'
            "</span>")
    head = "".join(f'<span style="color:{style.MUTED};font-size:11px">{text}</span>' for text in
                   ("", "request", "prompt and answer", "in the cache", "its block table: which blocks, in its order"))
    return ('<div style="display:grid;grid-template-columns:auto auto minmax(60px,1fr) auto minmax(120px,1.6fr);'
            f'column-gap:12px;row-gap:3px;align-items:center;font-size:12px;margin-top:12px">{head}{"".join(rows)}</div>')


def _foot(state: State, model: ModelConfig) -> str:
    pool_tokens, empty = len(state.pool) * BLOCK_SIZE, state.used * BLOCK_SIZE - state.tokens
    reserved = reserved_tokens(state)
    heads = "one latent" if model.mla else f"2 × {model.num_key_value_heads} heads × {model.head_dim}"
    layers = len(model.attention_layers)
    element = kv_cache_bytes_per_token(model) // (layers * layer_token_elements(model))
    parts = [f"One token: {heads} × {layers} layers × {element} bytes = {size(kv_cache_bytes_per_token(model))}.",
             f"Taken but still empty: {empty} slots, less than one block a request."]
    if reserved:
        over = " — more than the whole pool" if reserved > pool_tokens else ""
        parts.append(f"Without paging, the running requests would hold {reserved:,} of {pool_tokens:,} slots "
                     f"from their start{over}.")
    return (f'<div style="font-size:12px;color:{style.MUTED};margin-top:10px;line-height:1.5">'
            f'{html.escape(" ".join(parts))}</div>')


def size(count: float) -> str:
    """Return bytes in the largest binary unit that leaves at least 1."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{count / scale:,.1f} {unit}".replace(".0 ", " ")
    return f"{count:,.0f} bytes"

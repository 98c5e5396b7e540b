"""The picture of the paged KV cache: the counters, the pool, a row for each request, one token.

The functions are pure: a state in, HTML out.
"""

from inference_planner.catalog.config import ModelConfig
from inference_planner.model.attention import main_kind
from inference_planner.model.kv_cache import BLOCK_SIZE

from workshop.course.drawing.html import Html, bar, div, muted, panel, span, tag, tiles
from workshop.course.drawing.readable_numbers import size
from workshop.course.widgets.kv_cache.case import State, percent_done, reserved_tokens, token_bytes

SIGNS = {
    "coming": "not yet here",
    "waiting": "waits",
    "running": "runs",
    "preempted": "preempted, waits",
    "finished": "✓ finished",
}
COLUMNS = (
    "",
    "request",
    "prompt and answer",
    "in the cache",
    "its blocks, in order (the block table)",
)


def picture(state: State, model: ModelConfig, last_event: str = "") -> Html:
    """Return the whole picture; `last_event` is said while nothing new happens."""
    about = muted(f"The pool: one box is a block of {BLOCK_SIZE} tokens, in every layer")
    blocks = [_block(number, filled) for number, filled in enumerate(state.pool)]
    pool = div(*blocks, cls="pool")
    parts = (*_head(state, model, last_event), about, pool, _requests(state), _foot(state, model))
    return panel(*parts, label=spoken(state, model))


def spoken(state: State, model: ModelConfig) -> str:
    """Return the picture in words, for a screen reader."""
    cached = f"{state.tokens} tokens, {size(state.tokens * token_bytes(model))}"
    used = f"{state.used} of {len(state.pool)} blocks used"
    requests = []
    for shown in state.requests:
        blocks = f"{shown.tokens} tokens in {len(shown.blocks)} blocks"
        requests.append(f"{shown.request.name} {SIGNS[shown.state]}, {blocks}")
    return f"Step {state.step}. {used}, {cached}. {'. '.join(requests)}. {state.event}"


def _head(state: State, model: ModelConfig, last_event: str) -> tuple[Html, ...]:
    """The counters, a bar of the whole pool, and what happened."""
    per_token = token_bytes(model)
    blocks = len(state.pool)
    numbers = (
        (f"{state.tokens:,}", "tokens in the cache"),
        (size(state.tokens * per_token), f"× {per_token:,} bytes per token"),
        (f"{state.used} of {blocks}", "blocks taken"),
    )
    warning, colour = "", "kv"
    if state.used == blocks:
        warning, colour = tag("b", "FULL ", cls="ink-bad"), "bad"
    filled = bar([(colour, 100 * state.used / blocks)], cls="thin")
    look = "event ink-muted"
    if state.event:
        look = "event"
    event = div(warning, state.event or last_event, cls=look)
    return tiles(numbers, columns=3), filled, event


def _block(number: int, content: tuple[int, int] | None) -> Html:
    """One block; content is (index of the request, filled slots), or None where it is free."""
    if content is None:
        return Html(f'<span class="block"><i>{number}</i></span>')
    request, filled = content[0] % 6, content[1]
    look = f"block c{request}"
    # The name reads on the colour; where a block is hardly filled it stands on the free part, as
    # its number often does.
    if filled >= 5:
        look += " inked"
    if filled >= 14:
        look += " full"
    share = f"--f:{100 * filled / BLOCK_SIZE:.2f}%"
    return Html(f'<span class="{look}" style="{share}">{"ABCDEF"[request]}<i>{number}</i></span>')


def _requests(state: State) -> Html:
    """A row a request: what it is doing, how far it is, and its blocks in its own order."""
    cells = [span(name, cls="note") for name in COLUMNS]
    for index, shown in enumerate(state.requests):
        colour = f"c{index % 6}"
        quiet = ""
        if shown.state in ("coming", "finished"):
            quiet = " ink-muted"
        sign = SIGNS[shown.state]
        if shown.preemptions:
            sign += f" ({shown.preemptions}× preempted)"
        blocks = " ".join(map(str, shown.blocks)) or "–"
        cells += [
            tag("b", shown.request.name, cls=colour),
            span(sign, cls=f"whole{quiet}"),
            bar([("request", percent_done(shown))], cls=f"thin {colour}"),
            span(f"{shown.tokens} tokens", cls="number"),
            span(blocks, cls=f"mono{quiet}"),
        ]
    return div(*cells, cls="requests")


def _foot(state: State, model: ModelConfig) -> Html:
    per_token = token_bytes(model)
    layers = len(model.attention_layers)
    kind = main_kind(model)
    element_bytes = per_token // (layers * kind.token_elements(model))
    product = f"{kind.describe_token(model)} × {layers} layers × {element_bytes} bytes"
    empty = state.used * BLOCK_SIZE - state.tokens
    text = f"One token: {product} = {size(per_token)}. "
    text += f"Taken but still empty: {empty} places, less than one block per request. "
    reserved = reserved_tokens(state)
    slots = len(state.pool) * BLOCK_SIZE
    if reserved:
        text += "Without paging, the running requests would hold "
        text += f"{reserved:,} of {slots:,} slots from their start"
        if reserved > slots:
            text += " — more than the whole pool"
        text += "."
    return muted(text, cls="gap")

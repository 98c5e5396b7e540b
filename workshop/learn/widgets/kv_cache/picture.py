"""The picture of the KV cache: the pool of blocks, each request's own list of blocks, the bytes. Pure: text out."""

from workshop.learn.html import Html, bar, div, muted, panel, span, tag, tiles
from workshop.learn.numbers import size
from workshop.learn.widgets.kv_cache.case import State, reserved_tokens, token_bytes
from workshop.plan.attention import main_kind
from workshop.plan.catalog.config import ModelConfig
from workshop.plan.kv_cache import BLOCK_SIZE

SIGNS = {"coming": "not yet here", "waiting": "waits", "running": "runs", "preempted": "preempted, waits",
         "finished": "✓ finished"}  # fmt: skip
COLUMNS = ("", "request", "prompt and answer", "in the cache", "its block table: which blocks, in its order")


def picture(state: State, model: ModelConfig, last_event: str = "") -> Html:
    """Return the whole picture; `last_event` is said while nothing new happens."""
    about = muted(f"The pool: one box is a block of {BLOCK_SIZE} tokens, in every layer")
    pool = div(*(_block(number, held) for number, held in enumerate(state.pool)), cls="pool")
    parts = (*_head(state, model, last_event), about, pool, _requests(state), _foot(state, model))
    return panel(*parts, label=spoken(state, model))


def spoken(state: State, model: ModelConfig) -> str:
    each = [f"{s.request.name} {SIGNS[s.state]}, {s.tokens} tokens in {len(s.blocks)} blocks" for s in state.requests]
    held = f"{state.tokens} tokens, {size(state.tokens * token_bytes(model))}"
    return f"Step {state.step}. {state.used} of {len(state.pool)} blocks used, {held}. {'. '.join(each)}. {state.event}"


def _head(state: State, model: ModelConfig, last_event: str) -> tuple[Html, ...]:
    """The counters, a bar of the whole pool, and what happened."""
    each, full = token_bytes(model), state.used == len(state.pool)
    bytes_ = (size(state.tokens * each), f"× {each:,} bytes a token")
    taken = (f"{state.used} of {len(state.pool)}", "blocks taken")
    numbers = ((f"{state.tokens:,}", "tokens in the cache"), bytes_, taken)
    warn = tag("b", "FULL ", cls="ink-bad") if full else ""
    event = div(warn, state.event or last_event, cls="event" if state.event else "event ink-muted")
    filled = bar([("bad" if full else "kv", 100 * state.used / len(state.pool))], cls="thin")
    return tiles(numbers, columns=3), filled, event


def _block(number: int, held: tuple[int, int] | None) -> Html:
    if held is None:
        return Html(f'<span class="block"><i>{number}</i></span>')
    index, filled = held[0] % 6, held[1]
    # The name reads on the colour; where a block is hardly filled it stands on the free part, as its number often does.
    cls = f"block c{index}{' inked' if filled >= 5 else ''}{' full' if filled >= 14 else ''}"
    share = f"--f:{100 * filled / BLOCK_SIZE:.2f}%"
    return Html(f'<span class="{cls}" style="{share}">{"ABCDEF"[index]}<i>{number}</i></span>')


def _requests(state: State) -> Html:
    """A row a request: what it is doing, how far it is, and its blocks in its own order."""
    rows = [span(name, cls="note") for name in COLUMNS]
    for index, s in enumerate(state.requests):
        total = s.request.prompt + s.request.output
        done = 100 * (s.request.prompt + s.generated) / total if s.state not in ("coming", "waiting") else 0
        quiet = " ink-muted" if s.state in ("coming", "finished") else ""
        again = f" ({s.preemptions}× preempted)" if s.preemptions else ""
        rows += [
            tag("b", s.request.name, cls=f"c{index % 6}"),
            span(SIGNS[s.state] + again, cls=f"whole{quiet}"),
            bar([("request", done)], cls=f"thin c{index % 6}"),
            span(f"{s.tokens} tokens", cls="number"),
            span(" ".join(map(str, s.blocks)) or "–", cls=f"mono{quiet}"),
        ]
    return div(*rows, cls="requests")


def _foot(state: State, model: ModelConfig) -> Html:
    pool_tokens, empty = len(state.pool) * BLOCK_SIZE, state.used * BLOCK_SIZE - state.tokens
    each, layers, reserved = token_bytes(model), len(model.attention_layers), reserved_tokens(state)
    heads = "one latent" if model.mla else f"2 × {model.num_key_value_heads} heads × {model.head_dim}"
    element = each // (layers * main_kind(model).token_elements(model))
    said = f"One token: {heads} × {layers} layers × {element} bytes = {size(each)}. "
    said += f"Taken but still empty: {empty} slots, less than one block a request. "
    if reserved:
        held = f"the running requests would hold {reserved:,} of {pool_tokens:,} slots from their start"
        said += f"Without paging, {held}{' — more than the whole pool' if reserved > pool_tokens else ''}."
    return muted(said, cls="gap")

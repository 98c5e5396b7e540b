"""Part 1: attention, and the KV cache step by step."""

from __future__ import annotations

from inference_planner.catalog import load_model
from inference_planner.model.kv_cache import kv_cache_bytes_per_token

from drawings.canvas import (
    BLUE,
    GREEN,
    HAIR,
    INK,
    KV_CACHE,
    KV_CACHE_PALE,
    NORMAL,
    SOFT,
    VERMILLION,
    WIDTH,
    Canvas,
)

TOKENS = ("San", "Francisco", "is", "a", "port", "in")
PROMPT = 4


def attention() -> Canvas:
    """The newest token's query against every earlier key; their values mixed."""
    tokens, x0, w = TOKENS[:5], 150, 180
    c = Canvas(
        400,
        "The newest token, port, has a query. It is compared with the keys of San, Francisco, is, a and "
        "of itself. "
        "Softmax makes shares of the results; their values, mixed by these shares, are the output.",
    )
    shares = (0.22, 0.42, 0.06, 0.10, 0.20)
    for n, word in enumerate(tokens):
        x = x0 + n * (w + 14)
        c.text(x + w / 2, 26, word, NORMAL, anchor="middle", bold=n == 4)
        c.label(x, 44, w, 50, "key", "#FBE3B0", ink=INK)
        c.label(x, 246, w, 50, "value", "#FBE3B0", ink=INK)
        c.box(
            x + w / 2 - 28, 210 - 90 * shares[n] / 0.42, 56, 90 * shares[n] / 0.42, BLUE, radius=3
        )
        c.line([(x + w / 2, 214), (x + w / 2, 240)], SOFT, 2, head=True)
    c.text(0, 76, "compare", NORMAL, fill=SOFT).text(0, 178, "share", NORMAL, fill=SOFT).text(
        0, 278, "mix", NORMAL, fill=SOFT
    )
    right = x0 + 5 * (w + 14) - 14
    c.line([(x0 - 8, 212), (right + 4, 212)], HAIR, 2)
    c.line([(x0, 308), (x0, 322), (right, 322), (right, 308)], SOFT, 2)
    c.arrow((x0 + right) / 2, 322, (x0 + right) / 2, 346)
    return c.label(
        (x0 + right) / 2 - 210, 350, 420, 46, "output of “port” in this layer", BLUE, bold=True
    )


def kv_step(step: int, cached: bool) -> Canvas:
    """One step of generation: which keys and values are computed, which are read. Step 1 reads the whole prompt."""
    count = PROMPT + step - 1
    fresh = range(count) if not cached or step == 1 else range(count - 1, count)
    pairs = [1 if cached and earlier else PROMPT + earlier for earlier in range(step)]
    done = sum(pairs)
    where = "with a KV cache" if cached else "without a cache"
    c = Canvas(
        390,
        f"Step {step} {where}: keys and values of {len(fresh)} of {count} tokens are computed, "
        f"{count - len(fresh)} are read from the cache; {done} computed so far.",
    )
    cell, x0, y0 = 118, 128, 74
    for n, word in enumerate(TOKENS[:count]):
        x = x0 + n * (cell + 12)
        c.text(x + cell / 2, 40, word, NORMAL, anchor="middle", bold=n == count - 1)
        for row, name in enumerate(("K", "V")):
            y = y0 + row * 74
            if n in fresh:
                c.label(x, y, cell, 60, name, VERMILLION, bold=True, size=24)
            else:
                c.label(
                    x,
                    y,
                    cell,
                    60,
                    name,
                    KV_CACHE_PALE,
                    stroke=KV_CACHE,
                    size=24,
                    dash="6 4",
                    ink=INK,
                )
    c.text(0, y0 + 38, "keys", NORMAL, fill=SOFT).text(0, y0 + 112, "values", NORMAL, fill=SOFT)
    x = x0 + (count - 1) * (cell + 12)
    c.label(x, 250, cell, 52, "query", BLUE, bold=True)
    c.arrow(x + cell / 2, 246, x + cell / 2, 224, BLUE)
    if count < len(TOKENS):
        c.label(x + cell + 44, 250, cell, 52, TOKENS[count], GREEN, bold=True)
        c.arrow(x + cell + 6, 276, x + cell + 36, 276)
    c.text(WIDTH, 130, str(done), 84, bold=True, anchor="end", fill=BLUE)
    for n, line in enumerate(("pairs of K and V", "computed so far")):
        c.text(WIDTH, 166 + 28 * n, line, 20, anchor="end", fill=SOFT)
    if step > 1:
        c.text(WIDTH, 236, " + ".join(map(str, pairs)), NORMAL, anchor="end", fill=BLUE)
    return c.legend(
        x0,
        372,
        [(VERMILLION, "computed in this step"), ("dashed:" + KV_CACHE, "read from the cache")],
    )


def grouped_heads() -> Canvas:
    """Query heads over the KV heads that they share, for Llama 3.2 1B."""
    m = load_model("llama-3.2-1b")
    group_size = m.num_attention_heads // m.num_key_value_heads
    c = Canvas(
        250,
        f"Llama 3.2 1B: {m.num_attention_heads} query heads in {m.num_key_value_heads} groups of {group_size}; "
        f"each group "
        "shares one pair of key and value heads, and only these are cached.",
    )
    width = WIDTH / m.num_key_value_heads
    for g in range(m.num_key_value_heads):
        x = g * width
        for h in range(group_size):
            c.box(
                x + 4 + h * (width - 16) / group_size,
                40,
                (width - 16) / group_size - 3,
                60,
                BLUE,
                radius=3,
            )
        c.line([(x + 4, 112), (x + 4, 122), (x + width - 12, 122), (x + width - 12, 112)], SOFT, 2)
        c.line([(x + width / 2 - 4, 122), (x + width / 2 - 4, 142)], SOFT, 2, head=True)
        c.label(x + 4, 150, width - 16, 58, "K V", KV_CACHE, bold=True, ink=INK)
    c.text(
        4,
        22,
        f"Llama 3.2 1B: {m.num_attention_heads} query heads, computed, then forgotten",
        NORMAL,
    )
    return c.text(4, 240, f"{m.num_key_value_heads} KV heads: kept, for every token", NORMAL)


def kv_formula() -> Canvas:
    """The bytes of one token, factor by factor, for 1B, as notebook 1 computes them."""
    m = load_model("llama-3.2-1b")
    total = kv_cache_bytes_per_token(m)
    factors = (
        (2, "K and V"),
        (m.num_hidden_layers, "layers"),
        (m.num_key_value_heads, "KV heads"),
        (m.head_dim, "head_dim"),
        (2, "bytes (16 bit)"),
    )
    c = Canvas(
        250,
        " times ".join(f"{value} {name}" for value, name in factors) + f" is {total:,} bytes, "
        f"{total // 1024} KiB, for each token of Llama 3.2 1B.",
    )
    width, gap = 150, 40
    for n, (value, name) in enumerate(factors):
        x = n * (width + gap)
        c.label(
            x,
            16,
            width,
            96,
            str(value),
            KV_CACHE_PALE,
            size=46,
            bold=True,
            stroke=KV_CACHE,
            ink=INK,
            radius=12,
        )
        c.text(x + width / 2, 146, name, 20, fill=SOFT, anchor="middle")
        if n:
            c.text(x - gap / 2, 76, "×", 34, anchor="middle", fill=SOFT)
    x = 5 * (width + gap)
    c.text(x - 14, 76, "=", 34, anchor="middle", fill=SOFT)
    c.text(x + 10, 64, f"{total // 1024} KiB", 44, bold=True, fill=INK).text(
        x + 10, 98, "a token", 24, fill=SOFT
    )
    return c.text(0, 214, f"{total:,} bytes a token of Llama 3.2 1B", 28, bold=True)


FIGURES = {
    "attention": attention,
    "kv_without": lambda: kv_step(3, False),
    "kv_1": lambda: kv_step(1, True),
    "kv_3": lambda: kv_step(3, True),
    "grouped_heads": grouped_heads,
    "kv_formula": kv_formula,
}

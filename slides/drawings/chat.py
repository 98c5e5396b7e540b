"""A tool call: who says what to whom."""

from __future__ import annotations

from drawings.canvas import BLUE, GREEN, HAIR, INK, ORANGE, PALE, SMALL, SOFT, Canvas


def tools() -> Canvas:
    """Your program, the server and the tool, from the question to the answer."""
    c = Canvas(
        330,
        "Your program sends messages and a list of tools. The server answers with a tool call in place of text, finish_reason tool_calls. "
        "Your program checks it, runs the function, and sends its result as a message with the role tool. Then the model answers in words.",
    )
    for x, name, colour in (
        (0, "your program", GREEN),
        (476, "server: model + parser", BLUE),
        (956, "your function", ORANGE),
    ):
        c.label(
            x,
            0,
            180 if x != 476 else 300,
            52,
            name,
            colour,
            size=21,
            bold=True,
            ink=INK if colour == ORANGE else "",
        )
    for x in (90, 626, 1046):
        c.line([(x, 56), (x, 322)], HAIR, 3, dash="6 5")
    steps = ((90, 626, 92, "1 messages, tools: what there is"), (626, 90, 142, '2  tool_calls: weather(city="Boston")'),
             (90, 1046, 192, "3 you check the arguments, and run it"), (1046, 90, 242, "4 18 °C"),
             (90, 626, 292, '5  {"role": "tool", "content": "18 °C"}'))  # fmt: skip
    for start, end, y, label in steps:
        toward = 8 if end > start else -8
        c.arrow(start + toward, y, end - toward, y, INK, 2.5)
        c.text(110, y - 9, label, SMALL, mono=y in (142, 292))
    c.box(650, 268, 480, 48, PALE, radius=8)
    return c.text(666, 299, "6 “It is 18 °C in Boston.”", 21, fill=SOFT)


FIGURES = {"tools": tools}

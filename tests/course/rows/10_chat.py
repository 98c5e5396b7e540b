"""Rows of test_every_check for notebook 10."""

from __future__ import annotations

import json

from workshop.course.notebooks.nb10 import render

MESSAGES = [
    {"role": "user", "content": "What is Boston?"},
    {"role": "assistant", "content": "A city."},
    {"role": "user", "content": "What is Paris?"},
]
TEXT = render(MESSAGES).removeprefix("<|begin_of_text|>")  # the template itself says what is right
AUTO, HERMES, QWEN = (
    "--enable-auto-tool-choice",
    ["--tool-call-parser", "hermes"],
    ["--reasoning-parser", "qwen3"],
)


def join(chunks):
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def join_in_a_loop(chunks):
    text = ""
    for chunk in chunks:
        for choice in chunk.choices:
            text += choice.delta.content or ""
    return text


def get_weather(city):
    return f"{city}: 18 degrees"


def run_call(called):
    content = get_weather(**json.loads(called.function.arguments))
    return {"role": "tool", "tool_call_id": called.id, "content": content}


ROWS = {
    "chat.by_hand": (
        [TEXT, TEXT + "\n"],
        [
            (render(MESSAGES), "leave out <|begin_of_text|>"),
            (TEXT.removesuffix("Answer:"), "its turn"),
            (TEXT.replace("<|end_of_text|>", ""), "eos_token is missing"),
            (TEXT.replace("<|end_of_text|>", "", 1) + "<|end_of_text|>", "at the wrong place"),
            (TEXT.replace("\n", "\\n"), "leave out the r"),
            (TEXT.replace("<|end_of_text|>", "<|end_of_text|>\n"), "as far as"),
            ("user: What is Boston?", "which word does the template write before a user's message"),
            (MESSAGES, "one text"),
        ],
    ),
    "chat.join": (
        [join, join_in_a_loop],
        [
            (
                lambda chunks: "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
                "no choices",
            ),
            (
                lambda chunks: "".join(c.choices[0].delta.content for c in chunks if c.choices),
                "may be None",
            ),
            (
                lambda chunks: [c.choices[0].delta.content or "" for c in chunks if c.choices],
                "it returned a list",
            ),
            (
                lambda chunks: " ".join(
                    c.choices[0].delta.content or "" for c in chunks if c.choices
                ),
                "it made",
            ),
            (lambda chunks: " Paris is a city.", "it made"),
            (lambda chunks: join(chunks[1:-3]), "it made"),
            ("Boston is", "not a function"),
        ],
    ),
    "chat.pattern": (
        [
            r'\{"kind": "(city|river)"\}',
            r'\{"kind":"(city|river)"\}',
            r'^\{"kind": ?"(?:city|river)"\}$',
            r'[{]"kind": "(river|city)"[}]',
            r'\{ ?"kind" : "(city|river)" ?\}',
            r'\{\n  "kind": "(city|river)"\n\}',
            r'\{"kind": "city"\}|\{"kind": "river"\}',
        ],
        [
            (r'{"kind": "(city|river)"}', "curly bracket"),
            (r'\{\s*"kind":\s*"(city|river)"\s*\}', "after { it still allows"),
            (r'\{"kind": *"(city|river)"\}', "after : it still allows"),
            (r'\s*\{"kind": "(city|river)"\}', "before { it still allows"),
            (r'\{"kind": "(city|river)"\}\n*', "after } it still allows"),
            (r"city|river", "the word alone"),
            (r'\{"kind": "city|river"\}', "divides the whole pattern"),
            (r"\{'kind': '(city|river)'\}', ", "double quotes"),
            (r'\{"kind": (city|river)\}', "does not allow {"),
            (r'\{"kind": "city"\}', "does not allow the kind river"),
            (r'\{"kind": "river"\}', "does not allow the kind city"),
            (r'\{"kind": "[a-z]+"\}', "'person'"),
            (r'\{"kind": "(city|river)*"\}', "the kind ''"),
            (r'\{"kind": "(city|river"\}', "no regular expression"),
            ({"kind": "city"}, "as a text"),
        ],
    ),
    "chat.flags": (
        [
            [AUTO, *HERMES, *QWEN],
            (*QWEN, AUTO, *HERMES),
            [AUTO, "--tool-call-parser=hermes", "--reasoning-parser=qwen3"],
        ],
        [
            (f"{AUTO} --tool-call-parser hermes --reasoning-parser qwen3", "a list of texts"),
            ([AUTO, "--tool-call-parser hermes", *QWEN], "not one with a space"),
            ([*HERMES, *QWEN], "decide for itself"),
            ([AUTO, *QWEN], "the tool calls"),
            ([AUTO, *HERMES], "the thoughts"),
            ([AUTO, "--tool-call-parser", "qwen3", *QWEN], "for Qwen3, not qwen3"),
            ([AUTO, *HERMES, "--reasoning-parser"], "not nothing"),
            ([1, 2], "a list of texts"),
            ([AUTO, "true", *HERMES, *QWEN], "a word too many"),
            ([AUTO, *HERMES, *QWEN, "--chat-template"], "--chat-template is not needed"),
        ],
    ),
    "chat.run_call": (
        [run_call, lambda called: {**run_call(called), "name": "get_weather"}],
        [
            (lambda called: get_weather(called.function.arguments["city"]), "json.loads"),
            (
                lambda called: {
                    **run_call(called),
                    "content": get_weather(**called.function.arguments),
                },
                "json.loads",
            ),
            (lambda called: run_call(called)["content"], "return a message"),
            (lambda called: {**run_call(called), "role": "user"}, "not 'user'"),
            (lambda called: {**run_call(called), "tool_call_id": "call-0"}, "called.id"),
            (lambda called: {**run_call(called), "content": {"degrees": 18}}, "has to be a text"),
            (
                lambda called: {**run_call(called), "content": get_weather("Boston")},
                "with the city Paris",
            ),
            ({"role": "tool"}, "not a function"),
        ],
    ),
}

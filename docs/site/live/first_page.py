"""The page of the first minute: `first.html`, a box to type into, with the teaching model in it."""

from __future__ import annotations

import re
from pathlib import Path

from static_page import COLORS, page

from workshop.course.drawing import html
from workshop.course.widgets.sampling.first_words import TEXT, FirstWords
from workshop.course.widgets.sampling.source import TeachingModel
from workshop.teaching_model import FOLDER

HERE = Path(__file__).parent
FILES = (
    "config.json",
    "tokenizer.json",
    *(f"model-0000{part}-of-00004.safetensors" for part in range(1, 5)),
)
TITLE = "Type, and see the next words"
ABOUT = (
    "The first minute of the course: type a text, and see its next words branch as the temperature "
    "moves. A small language model runs in the page, also on a phone; nothing that you type leaves it."
)


def first_page(packed) -> str:
    """Return the page, whole; `packed` compresses a file's bytes to text that a page can hold."""
    box = FirstWords(TeachingModel())
    label = re.search(r'aria-label="([^"]*)"', box.picture.value)
    drawn = re.search(r'<div class="branching.*</div>(?=<div class="note">)', box.picture.value)
    assert label is not None and drawn is not None, "the picture of FirstWords has other parts"
    body = (
        f'<div class="first"><h1>{TITLE}</h1>'
        f'<label>Type:<input id="text" value="{TEXT}" placeholder="{TEXT}" maxlength="300" autocomplete="off" '
        'autocapitalize="off" spellcheck="false"></label>'
        '<div class="controls"><label>temperature<input id="temperature" type="range" min="0" max="2" step="0.05" '
        'value="1" disabled><output>1.00</output></label>'
        '<button id="add" type="button" disabled>Add a word</button></div>'
        f'<div class="workshop" id="picture" role="img" aria-label="{label[1]}">{drawn[0]}</div>'
        '<p class="note" id="status" role="status">The model is read …</p>'
        '<p class="note">It has 12 million parameters, knows cities, animals and tools, and little else. '
        '<a href="index.html">The course</a> asks models of up to 405 billion the same question.</p></div>'
    )
    data = "".join(
        f'<script type="application/gzip" id="{name}">{packed((FOLDER / name).read_bytes())}</script>\n'
        for name in FILES
    )
    model = (HERE.parent / "lite" / "llama.js").read_text(encoding="utf-8").replace("export ", "")
    script = (HERE / "first_words.js").read_text(encoding="utf-8")
    look = (HERE / "first_words.css").read_text(encoding="utf-8")
    look = f".first {{ {COLORS} }}\n{look}"
    text = page(TITLE, body)
    text = text.replace("</head>", f"{html.SHEET}<style>{look}</style></head>")
    return text.replace(
        "</body>", f'{data}<script type="module">\n{model}\n{script}</script></body>'
    )

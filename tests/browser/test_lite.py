"""The course as a JupyterLab in the browser alone: notebooks run, the model answers, nothing is asked of elsewhere."""

from __future__ import annotations

import functools
import http.server

import lab_page
import nbformat
import numpy as np
import pytest
from lite import build as lite
from small_server import serving

from workshop.teaching_model import FOLDER, reference

pytestmark = pytest.mark.browser
# notebook -> cells that are run, and what they say then
SAID = {
    # the box, the map, the doctor, the panel
    "00_start": (6, ("Model: teaching-model in this page",)),
    # pictures, questions, the model, the viewer, predictions, logprobs
    "05_logprobs": (12, ("perplexity  label", "asdkl jjjj;; oopq")),
    # a picture, chats, their tokens
    "10_chat": (12, ("tokens of the prompt: 10 and 5", "gives the same tokens", "tokens more")),
}
TEXTS = [
    "San Francisco is a",
    "I like 👍 and 🚀",
    "It's  2 spaces\n\nand 1,234.5 ñandú: 日本語 don't\t",
    "  leading",
]
# Of each text: its tokens, their text, the logits of the next one.
COMPUTED = """async ([texts, names]) => {
    const { teachingModel } = await import("/docs/site/lite/llama.js");
    const bytes = name => fetch(`/workshop/teaching_model/${name}`).then(answer => answer.arrayBuffer());
    const files = await Promise.all(names.map(bytes));
    const { tokenizer, logits } = teachingModel(Object.fromEntries(names.map((name, at) => [name, files[at]])));
    return texts.map(text => {
        const ids = tokenizer.encode(text);
        return [ids, tokenizer.decode(ids), [...logits(ids)[0]]];
    });
}"""
# A cell has run: it has a number, or, folded, shows none
HAS_RUN = """at => { const cell = document.querySelector(`.jp-CodeCell[data-windowed-list-index='${at}']`);
    return !cell || !/\\[[ *]\\]/.test(cell.querySelector('.jp-InputPrompt').textContent) }"""
READY = "() => /Pyodide\\) \\| Idle/.test(document.querySelector('#jp-main-statusbar').innerText)"
ERROR = ".jp-RenderedText[data-mime-type='application/vnd.jupyter.stderr'], .jp-OutputArea-output .ansi-red-fg"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the site."""
    folder = tmp_path_factory.mktemp("lite") / "site"
    lite.build(folder)
    return folder


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A handler that writes no log."""

    def log_message(self, *_) -> None:
        pass


@pytest.fixture(scope="module")
def address(built):
    """Where the site is served."""
    with serving(functools.partial(Quiet, directory=built)) as address:
        yield address


def test_the_model_in_the_browser_is_the_course_s(browser):
    model = reference.load()
    names = [path.name for path in FOLDER.iterdir() if path.suffix in (".json", ".safetensors")]
    context = browser.new_context()
    page = context.new_page()
    with serving(functools.partial(Quiet, directory=lite.ROOT)) as address:
        page.goto(f"{address}/docs/site/lite/")
        texts = [*TEXTS, "one<|end_of_text|> two", "one", " two"]
        *results, joined, first, second = page.evaluate(COMPUTED, [texts, names])
    context.close()
    for text, (ids, again, logits) in zip(TEXTS, results, strict=True):
        assert again == text == reference.decode(ids)
        assert np.abs(model.logits(np.array([ids]))[0, -1] - logits).max() < 1e-3
    whole = [*first[0], 1, *second[0][1:]]
    assert joined[0] == whole, "a special token's name in a text is that token"


@pytest.mark.parametrize("notebook", SAID)
def test_a_notebook_runs_with_the_model_in_the_browser(browser, address, notebook):
    cells, expected = SAID[notebook]
    context = browser.new_context(viewport={"width": 1200, "height": 1000})
    elsewhere = []

    def only_here(route) -> None:
        if route.request.url.startswith(address):
            route.continue_()
        else:
            elsewhere.append(route.request.url)
            route.abort()

    context.route("**/*", only_here)
    page = context.new_page()
    page.goto(f"{address}/lab/index.html?path={notebook}.ipynb")
    page.locator(".jp-Notebook .jp-CodeCell").first.click(timeout=300_000)
    page.wait_for_function(READY, timeout=300_000)
    kinds = [
        cell.cell_type
        for cell in nbformat.read(lite.NOTEBOOKS / f"{notebook}.ipynb", as_version=4).cells
    ]
    last = [at for at, kind in enumerate(kinds) if kind == "code"][cells - 1]
    for at in range(kinds.index("code"), last + 1):  # the first code cell was clicked
        page.keyboard.press("Shift+Enter")
        page.wait_for_selector(
            f"[data-windowed-list-index='{at + 1}'].jp-mod-active", timeout=300_000
        )
        # one after the other, as a reader runs them
        page.wait_for_function(HAS_RUN, arg=at, timeout=120_000)
    page.wait_for_function(  # textContent: what is scrolled away has no innerText
        "n => [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].some(e => e.textContent.includes(`[${n}]`))",
        arg=cells,
        timeout=300_000,
    )
    text = page.locator(".jp-Notebook").text_content()
    assert not page.locator(ERROR).all_text_contents()
    assert all(part in text for part in expected), "the model has answered"
    lab_page.OUTPUT.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=lab_page.OUTPUT / "lite.png")
    assert page.locator(".jp-DirListing-itemText", has_text="my-progress").count(), (
        "progress is a folder of the browser's"
    )
    context.close()
    assert not elsewhere


def test_from_a_file_it_says_how_to_serve_it(browser, built):
    context = browser.new_context()
    page = context.new_page()
    page.goto((built / "lab" / "index.html").as_uri())
    assert "python3 -m http.server" in page.locator("body").inner_text()
    context.close()

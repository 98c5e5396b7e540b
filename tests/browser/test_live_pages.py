"""The pages that are live without a server: the course's own widgets and its model, in one file, the network cut."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from live import pages as live_pages

import workshop
from workshop.course.widgets.parallelism.view import ParallelismExplorer
from workshop.teaching_model import reference

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.browser
TEXTS = [
    "San Francisco is a",
    "I like 👍 and 🚀",
    "It's  2 spaces\n\nand 1,234.5 ñandú: 日本語 don't\t",
    "  leading",
]
OWN = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 25600,
    "num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-06, "rope_theta": 1000000, "hidden_act": "silu", "attention_bias": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Where the pages lie."""
    folder = tmp_path_factory.mktemp("live")
    live_pages.build(folder)
    return folder


@pytest.fixture
def opened(browser, built):
    """Return a function that opens a page from its file with the network cut, and waits until Python runs in it."""
    context = browser.new_context(viewport={"width": 1100, "height": 1000}, offline=True)
    urls = []
    wrong = []

    def open_page(name: str, state: str = "", width: int = 1100):
        page = context.new_page()
        page.set_viewport_size({"width": width, "height": 1000})
        page.on("request", lambda request: urls.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto((built / f"{name}.html").as_uri() + state)
        page.wait_for_function("document.documentElement.dataset.ready", timeout=120_000)
        return page

    yield open_page
    context.close()
    assert not wrong
    assert not [url for url in urls if not url.startswith(("file:", "blob:", "data:"))]


def text_of(html: str) -> str:
    """What somebody reads, without the markup."""
    text = re.sub(r"<(style|script).*?</\1>", "", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", text)).split())


def shown(page, part: str) -> str:
    return text_of(page.locator(f"#{part}").inner_html())


def move(page, part: str, label: str, value: object) -> None:
    """Set a control as the hand does: its value, and the event that follows."""
    page.locator(f'#{part} [aria-label="{label}"]').evaluate(
        "(e, v) => { e.value = v; e.dispatchEvent(new Event(e.tagName === 'SELECT' ? 'change' : 'input')); }",
        value,
    )


def test_sliders_say_what_they_say_in_a_notebook(opened):
    page, own = opened("plan"), workshop.MemorySliders()
    assert text_of(own.picture.value) in shown(page, "memory")
    requests = own.controls["requests"]
    move(page, "memory", "requests", str(requests.options.index(("512", 512))))
    requests.value = 512
    assert text_of(own.picture.value) in shown(page, "memory") and own.result.state == "waits"
    page.locator('#memory [aria-label="model"]').select_option("llama-3.1-70b")
    own.controls["model"].value = "llama-3.1-70b"
    assert text_of(own.picture.value) in shown(page, "memory")
    assert text_of(ParallelismExplorer().picture.value) in shown(page, "split")
    assert "model=llama-3.1-70b" in page.evaluate(
        "location.hash"
    ) and "requests=512" in page.evaluate("location.hash")


def test_an_address_says_where_the_controls_stand(opened):
    page = opened("plan", "#model=llama-3.1-70b&gpu=h200&n=4&nonsense=1&context=none")
    own = workshop.MemorySliders("llama-3.1-70b", gpu="h200", gpus=4)
    assert text_of(own.picture.value) in shown(page, "memory")
    page.evaluate("location.hash = '#gpus=2'")
    page.wait_for_function(
        "document.querySelector('#memory [aria-label=GPUs]').nextElementSibling.textContent === '2'"
    )


def test_the_planner_says_what_plan_says_of_a_pasted_config(opened, tmp_path):
    page = opened("plan")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(OWN))
    page.locator("#paste textarea").fill(json.dumps(OWN, indent=2))
    page.locator("#paste button").click()
    assert "is read, and chosen" in shown(page, "paste")
    expected = workshop.plan(str(path), "h100", max_model_len=8192)
    planner_text = shown(page, "planner")
    assert (
        f"{expected.kv_cache_tokens:,} tokens of KV cache" in planner_text
        and expected.reasons[0] in planner_text
    )
    for text, refusal in (
        ("hello", "That is no JSON"),
        ("[]", "it holds no object"),
        ('{"model_type": "x"}', "✗"),
    ):
        page.locator("#paste textarea").fill(text)
        page.locator("#paste button").click()
        assert refusal in shown(page, "paste")
        assert shown(page, "planner") == planner_text, "what was there is left as it is"


def test_the_model_in_the_page_is_the_course_s(opened):
    page, model = opened("explorer"), reference.load()
    results = page.evaluate(
        """texts => texts.map(text => { const ids = [...teachingModel.tokenizer.encode(text)];
             return [ids, teachingModel.tokenizer.decode(ids), [...teachingModel.logits(ids, ids.length - 1)[0]]]; })""",
        TEXTS,
    )
    for text, (ids, again, logits) in zip(TEXTS, results, strict=True):
        assert again == text == reference.decode(ids)
        assert np.abs(model.logits(np.array([ids]))[0, -1] - logits).max() < 1e-3
    joined, *apart = page.evaluate(
        "['one<|end_of_text|> two', 'one', ' two'].map(text => [...teachingModel.tokenizer.encode(text)])"
    )
    assert joined == [*apart[0], 1, *apart[1][1:]], "a special token's name in a text is that token"
    page.locator("#logprobs textarea").fill("The Eiffel Tower is in")
    greedy = reference.complete(
        model, [page.evaluate("[...teachingModel.tokenizer.encode('The Eiffel Tower is in')]")], 16
    )
    page.locator('#logprobs [aria-label="temperature"]').first.fill("0")
    page.locator('#logprobs [aria-label="temperature"]').first.dispatch_event("change")
    page.locator("#logprobs button", has_text="Complete").click()
    completion = "".join(shown(page, "logprobs").split()).replace("·", "")
    assert "".join(reference.decode(greedy[0][:4]).split()) in completion
    page.locator("#sampling button", has_text="Take the best").click()
    best = reference.complete(
        model, [page.evaluate("[...teachingModel.tokenizer.encode('San Francisco is a')]")], 1
    )[0]
    assert f"San Francisco is a{reference.decode(best)}" in " ".join(
        shown(page, "sampling").split()
    )


@pytest.mark.parametrize("name", live_pages.PAGES)
def test_pages_fit_a_phone(opened, name):
    page = opened(name, width=390)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 390
    (ROOT / ".ci" / "output").mkdir(parents=True, exist_ok=True)
    page.screenshot(path=ROOT / ".ci" / "output" / f"live_{name}_390.png", full_page=True)
    page.set_viewport_size({"width": 1100, "height": 1000})
    page.screenshot(path=ROOT / ".ci" / "output" / f"live_{name}.png", full_page=True)


def test_a_browser_that_cannot_says_so(browser, built):
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.add_init_script("delete globalThis.WebAssembly")
    page.goto((built / "plan.html").as_uri())
    page.wait_for_function(
        "document.getElementById('state').textContent.includes('cannot run Python')"
    )
    context.close()


def test_nothing_of_a_machine_is_in_a_page(built):
    lock = json.loads((live_pages.HERE / "package-lock.json").read_text())
    assert all("resolved" not in package for package in lock["packages"].values())
    assert str(ROOT) not in (built / "plan.html").read_text()

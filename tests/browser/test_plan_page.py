"""The planner in a page: one file with everything in it, opened with the network cut."""

from __future__ import annotations

import itertools
import json

import lab_page
import pytest
from inference_planner import plan
from live import pages

pytestmark = pytest.mark.browser
OWN = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 25600,
    "num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-06, "rope_theta": 1000000, "hidden_act": "silu", "attention_bias": False,
}  # fmt: skip
SCREEN = {"width": 1400, "height": 1000}
# Opens or closes all parts that are folded.
FOLDS = "open => document.querySelectorAll('details').forEach(e => { e.open = open; })"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The page of the planner."""
    folder = tmp_path_factory.mktemp("live")
    pages.build(folder)
    return folder / "plan.html"


@pytest.fixture
def opened(open_offline, built):
    """Return a function that opens the page."""
    return lambda address="": open_offline(built.as_uri() + address, viewport=SCREEN)


def shows(page, text: str) -> None:
    """Wait until the answer has this text."""
    page.locator("#answer", has_text=text).wait_for(timeout=20_000)


def test_the_form_says_what_plan_says_and_the_address_keeps_it(opened):
    page = opened()
    shows(page, f"{plan('llama-3.1-70b', 'h100').kv_cache_tokens:,}")
    assert page.evaluate("location.hash") == ""
    page.locator("[name=model]").select_option("qwen3-32b")
    page.locator("[name=gpu]").select_option("l40s")
    page.locator("[name=max_model_len]").fill("8K")
    page.locator("[name=enforce_eager]").check()
    expected = plan("qwen3-32b", "l40s", max_model_len=8192, enforce_eager=True)
    shows(page, f"{expected.kv_cache_tokens:,}")
    assert page.locator("#answer pre").inner_text() == expected.command
    assert page.locator("#answer li").all_inner_texts() == [*expected.reasons, *expected.advice]
    address = "#model=qwen3-32b&gpu=l40s&max_model_len=8K&enforce_eager=yes"
    assert page.evaluate("location.hash") == address
    again = opened(address)
    assert again.locator("#answer").inner_text() == page.locator("#answer").inner_text()
    again.evaluate("location.hash = '#gpu=no-such-card&gpus_per_node=1&nonsense=1'")
    shows(again, "llama-3.1-70b does not fit")


def test_a_config_that_is_pasted_is_planned(opened, tmp_path):
    page = opened()
    path = tmp_path / "config.json"
    path.write_text(json.dumps(OWN))
    page.locator("summary", has_text="Another model").click()
    page.locator("[name=config]").fill(json.dumps(OWN, indent=2))
    expected = plan(str(path), "h100")
    shows(page, f"{expected.kv_cache_tokens:,}")
    assert page.locator("#answer li").first.inner_text() == expected.reasons[0]
    assert page.evaluate("location.hash") == "", "it is too long for an address"
    page.locator("[name=config]").fill("hello")
    shows(page, "is not JSON")


def test_the_page_fits_its_screen(opened):
    page = opened()
    lab_page.OUTPUT.mkdir(parents=True, exist_ok=True)
    for width, scheme in itertools.product((390, 1400), ("light", "dark")):
        page.set_viewport_size({"width": width, "height": 1000})
        page.emulate_media(color_scheme=scheme)
        page.evaluate(FOLDS, False)
        page.screenshot(path=lab_page.OUTPUT / f"plan_{width}_{scheme}.png", full_page=True)
        page.evaluate(FOLDS, True)
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width


def test_a_browser_that_cannot_run_python_says_so(browser, built):
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.add_init_script("delete globalThis.WebAssembly")
    page.goto(built.as_uri())
    shows(page, "cannot run Python")
    context.close()


def test_nothing_of_a_machine_is_in_the_page(built):
    lock = json.loads((pages.HERE / "package-lock.json").read_text())
    assert all("resolved" not in package for package in lock["packages"].values())
    assert str(pages.ROOT) not in built.read_text()

"""The planner's widgets as a learner meets them: operated in a real JupyterLab, in notebooks 01 and 02."""

from __future__ import annotations

import re

import pytest
from lab_page import lab

pytestmark = [pytest.mark.browser]
PICTURE = ".workshop[role=img]"


class Widget:
    """One widget on the page: its controls by their names, and its picture by what it says to screen readers."""

    def __init__(self, page, says: str):
        self.page = page
        found = page.locator(".jp-OutputArea-output", has=page.locator(f"{PICTURE}[aria-label*='{says}']")).last
        found.scroll_into_view_if_needed()
        found.evaluate("(element, name) => element.setAttribute('data-widget', name)", says)   # its words will change
        self.root = page.locator(f"[data-widget='{says}']")

    def picture(self) -> str:
        return self.root.locator(PICTURE).last.get_attribute("aria-label")

    def control(self, name: str):
        label = self.page.locator(".widget-label", has_text=re.compile(f"^{name}$"))
        return self.root.locator(".widget-inline-hbox", has=label).first

    def choose(self, name: str, option: str) -> None:
        self._changes(lambda: self.control(name).locator("select").select_option(label=option))

    def type(self, name: str, value: str) -> None:
        """Set a slider by its readout and Enter."""
        readout = self.control(name).locator(".widget-readout")

        def write():
            readout.click()
            readout.press("Control+A")
            readout.type(value)
            readout.press("Enter")
        self._changes(write)

    def step(self, name: str, key: str = "ArrowRight") -> None:
        """Move a slider one step by the keyboard."""
        self._changes(lambda: self.control(name).locator(".noUi-handle").press(key))

    def _changes(self, act) -> None:
        before = self.picture()
        act()
        for _ in range(100):
            if self.picture() != before:
                return
            self.page.wait_for_timeout(50)
        raise AssertionError("the picture did not change")


def address(url: str, notebook: str) -> str:
    return re.sub(r"/tree/[^?]*", f"/tree/{notebook}", url)


def test_memory_and_kv_growth_answer_every_control(page, tmp_path):
    with lab(tmp_path / "home", tmp_path / "mine", "--no-server") as url:
        page.open(address(url, "01_memory.ipynb"))
        page.run_all()
        assert not page.failures()
        right = page.page.locator(".workshop-check[data-state=right]").count()
        assert right == 6, "all solutions are right"

        sliders = Widget(page.page, "Memory of llama-3.1-70b")
        page.shot("01_memory_sliders")
        sliders.type("utilization", "0.8")
        sliders.step("requests")
        sliders.step("context", "ArrowLeft")
        sliders.step("GPUs", "ArrowLeft")
        sliders.choose("GPU", "A100-SXM4-80GB")
        sliders.choose("weights", "4 bit (awq)")
        sliders.choose("model", "llama-3.1-405b")
        assert "It does not fit" in sliders.picture()

        growth = Widget(page.page, "blocks used")
        growth.type("step", "60")
        page.shot("01_kv_growth")
        growth.type("blocks", "40")
        growth.choose("model", "llama-3.1-70b")
        growth.type("step", "1")
        growth._changes(lambda: growth.root.locator(".widget-play button").first.click())
        assert not page.elsewhere
        assert not page.errors


def test_the_parallelism_explorer_answers_every_control(page, tmp_path):
    with lab(tmp_path / "home", tmp_path / "mine", "--no-server") as url:
        page.open(address(url, "02_parallelism.ipynb"))
        explorer = page.page.locator(f"{PICTURE}[aria-label*='GPU 0 on node 0']")
        for _ in range(60):     # cell by cell, so that no server is started
            if explorer.count():
                break
            page.page.keyboard.press("Shift+Enter")
            page.page.wait_for_timeout(300)
            while page.page.locator(".jp-InputPrompt", has_text="[*]").count():
                page.page.wait_for_timeout(100)
            page.page.wait_for_timeout(200)
        widget = Widget(page.page, "GPU 0 on node 0")
        page.shot("02_parallelism_explorer")
        widget.step("TP")                          # 16: needs 32 GPUs with PP 2, and there are 16
        assert "needs 32 GPUs" in widget.picture()
        widget.step("nodes")
        widget.step("GPUs a node", "ArrowLeft")
        widget.step("PP", "ArrowLeft")             # 1: it divides, and spans the nodes of 7
        assert "GPU 15 on node 2" in widget.picture()
        widget.step("requests")
        widget.choose("network", "25 Gbit/s Ethernet")
        widget.choose("GPU", "NVIDIA L40S")
        widget.choose("model", "falcon-7b")
        assert "71 attention heads" in widget.picture()
        assert not page.failures()
        assert not page.elsewhere
        assert not page.errors

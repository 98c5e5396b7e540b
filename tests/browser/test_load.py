"""The load explorer in JupyterLab: its button simulates while the kernel is free, it follows the controls, and is whole in every theme."""

from __future__ import annotations

import pytest
from needs import lacking
from widget_page import CUT, SILENT, Widget, choose_theme

from workshop.vllm_package import installed

pytestmark = [pytest.mark.browser]
EXPLORER = """from workshop.course.widgets.load.view import LoadExplorer
explorer = LoadExplorer("llama-3.1-8b", gpu="h100", rate=8)
explorer"""


def test_it_simulates_beside_the_kernel_and_is_whole(page, course_lab):
    if not installed()[0]:
        lacking("vLLM is not installed: make test installs it on Linux")
    page.open(course_lab.notebook("load", EXPLORER, "explorer.simulate()"))
    page.page.keyboard.press("Control+b")
    page.page.set_viewport_size({"width": 1400, "height": 1000})
    page.run_all()
    assert not page.failures()
    widget = Widget(
        page.page, page.page.locator(".jp-CodeCell").first.locator(".jp-Cell-outputArea")
    )
    assert "It keeps up" in widget.picture()
    page.shot("load_explorer")
    before = widget.picture()
    widget.reach_by_tab("requests/s")
    page.page.keyboard.press("End")
    page.page.get_by_text("Not simulated yet").wait_for(timeout=30_000)  # the old picture is gone
    simulate = page.page.get_by_role("button", name="Simulate")
    simulate.click()
    page.page.get_by_text("computing …").wait_for(timeout=30_000)
    page.page.get_by_text("Requests pile up.").wait_for(timeout=120_000)
    assert widget.picture() != before
    page.shot("load_explorer_piles_up")
    widget.reach_by_tab("requests/s")
    page.page.keyboard.press("Home")  # five requests: what follows is not about many
    widget.control("model").locator("select").select_option(label="llama-3.1-70b")
    simulate.click()
    page.page.get_by_text("does not fit").wait_for(timeout=60_000)
    gpus = widget.control("GPUs").locator(".noUi-handle")
    for _ in range(2):
        gpus.press("ArrowRight")
    simulate.click()
    page.page.get_by_text("4 × h100").wait_for(timeout=60_000)
    faults = []
    for theme, width in (("Light", 900), ("Dark", 1400)):
        choose_theme(page.page, f"JupyterLab {theme}")
        page.page.set_viewport_size({"width": width, "height": 1000})
        page.page.wait_for_timeout(400)
        page.shot(f"load_explorer_{theme.lower()}_{width}")
        faults += page.page.evaluate(CUT)
    assert not faults, "\n".join(faults)
    assert not page.page.evaluate(SILENT)
    assert not page.elsewhere and not page.errors

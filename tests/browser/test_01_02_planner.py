"""The planner's widgets as a learner meets them: operated in a real JupyterLab, in notebooks 01 and 02."""

from __future__ import annotations

import cells
import pytest
from widget_page import CUT, PICTURE, SILENT, Widget

pytestmark = [pytest.mark.browser]


def cells_with(notebook: str, *texts: str) -> list[str]:
    """Return the code cells of a notebook that have one of these texts."""
    code = cells.code(notebook)
    return [source for source in code if any(text in source for text in texts)]


def whole(page) -> None:
    """Nothing is cut on a narrow screen, no picture is without words, nothing is asked for elsewhere."""
    page.page.set_viewport_size({"width": 900, "height": 1000})
    page.page.keyboard.press("Control+b")  # the file browser takes a third of it
    page.page.wait_for_timeout(500)
    assert not page.page.evaluate(CUT)
    assert not page.page.evaluate(SILENT)
    assert not page.elsewhere
    assert not page.errors


def play_the_field(page) -> None:
    """The field fills by ▶ alone, without the kernel; keys and the slider turn its pages as well."""
    fields = page.page.locator(".jp-OutputArea-output", has=page.page.locator(".workshop .field"))
    assert fields.count() == 4
    root = fields.nth(2)
    root.scroll_into_view_if_needed()
    field = Widget(page.page, root)
    assert "80 squares of 1 GiB" in field.picture()
    field.changes(lambda: root.locator(".widget-play button").first.click())
    root.locator(f"{PICTURE}[aria-label*='request 882 must wait']").wait_for(timeout=60_000)
    root.locator(".widget-play .fa-play").wait_for()  # it has come to its end
    page.shot("01_gpu_field")
    field.step("step", "ArrowLeft")
    assert "881 requests of 512 tokens: 55.1 GiB" in field.picture()
    field.type("step", "3")
    assert field.picture().startswith("1 request of 512 tokens: 64 MiB")
    cut = Widget(page.page, fields.nth(3))
    cut.type("step", "2")
    assert "each holds half of every layer" in cut.picture()
    cut.type("step", "10")
    assert "request 4 must wait" in cut.picture()
    assert cut.root.get_by_text("GPU 3").count() == 1


def test_memory_and_kv_growth_answer_every_control(page, course_lab):
    shown = cells_with("01_memory", "import nb01", "GpuField(", "sliders = Mem", "growth = Kv")
    page.open(course_lab.notebook("memory", *shown))
    page.run_all()
    assert not page.failures()
    play_the_field(page)
    sliders = Widget(page.page, "Memory of llama-3.1-70b")
    assert "wait" in sliders.picture(), "running all cells does not solve the exercise"
    page.shot("01_memory_sliders")
    listed = sliders.control("requests").locator(".widget-readout")
    at, shown = listed.bounding_box(), listed.inner_text()
    page.page.mouse.click(at["x"] + at["width"] / 2, at["y"] + at["height"] / 2)
    page.page.keyboard.type("77")
    listed.focus()
    page.page.keyboard.type("77")
    assert listed.inner_text() == shown
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
    growth.changes(lambda: growth.root.locator(".widget-play button").first.click())
    whole(page)


def test_the_parallelism_explorer_answers_every_control(page, course_lab):
    page.open(course_lab.notebook("split", *cells_with("02_parallelism", "explorer = Par")))
    page.run_all()
    widget = Widget(page.page, "GPU 0 on node 0")
    page.shot("02_parallelism_explorer")
    widget.step("TP")  # 16: needs 32 GPUs with PP 2, and there are 16
    assert "needs 32 GPUs" in widget.picture()
    widget.step("nodes")
    widget.step("GPUs a node", "ArrowLeft")
    # 1: 16 GPUs are on three nodes of 7, which vLLM does not start
    widget.step("PP", "ArrowLeft")
    assert "cannot be shared out evenly" in widget.picture()
    widget.step("GPUs a node")
    assert "GPU 15 on node 1" in widget.picture()
    widget.step("requests")
    widget.choose("network", "25 Gbit/s Ethernet")
    widget.choose("GPU", "NVIDIA L40S")
    widget.control("model").locator("select").select_option(label="more …")
    widget.choose("model", "falcon-7b")  # waits until the list has it
    assert "71 attention heads" in widget.picture()
    assert not page.failures()
    whole(page)

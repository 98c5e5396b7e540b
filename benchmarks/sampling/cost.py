"""Measure a step of the explorer's sliders: in the kernel, and to the screen of a JupyterLab.

python benchmarks/sampling/cost.py          # needs chromium and playwright; no server; writes docs/sampling.md
"""

from __future__ import annotations

import json
import math
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from workshop.client.sampling import model_step, pipeline
from workshop.client.sampling_settings import Settings
from workshop.course.widgets.sampling.source import Position
from workshop.course.widgets.sampling.view import SamplingExplorer

VOCABULARIES = (20, 8192, 32_000)
# every step at work
BUSY = Settings(temperature=1.2, top_k=100, top_p=0.95, min_p=0.001, frequency_penalty=0.5)
STEPS = 40
NOTEBOOK = """import sys; sys.path.insert(0, {folder!r})
from cost import explorer
one = explorer(8192)
one"""
WATCH = """() => { window.times = []; window.start = 0;
const panel = [...document.querySelectorAll('.workshop[role=img]')][0].closest('.widget-html-content');
new MutationObserver(() => requestAnimationFrame(() => { if (window.start) {
  window.times.push(performance.now() - window.start); window.start = 0; } })).observe(panel, {childList: true});
document.addEventListener('keydown', () => { window.start = performance.now(); }, true); }"""


class MadeUp:
    """A source with one made-up distribution of any size."""

    live, prompts = True, ()

    def __init__(self, size: int):
        generator = random.Random(1)
        scores = sorted((generator.gauss(0, 3) for _ in range(size)), reverse=True)
        total = math.log(math.fsum(map(math.exp, scores)))
        self.logprobs = {token: score - total for token, score in enumerate(scores)}

    def describe(self) -> str:
        """Say what this is."""
        return "A made-up distribution"

    def position(self, prompt, output=()) -> Position:
        """Return it, whatever stands before."""
        return Position(self.logprobs)

    def text(self, tokens) -> str:
        """Return a made-up text."""
        return "".join(f" token{token}" for token in tokens)

    def complete(self, prompt, output, settings, **limits) -> list:
        """Return no completions: nothing is measured of them."""
        return []


def explorer(size: int) -> SamplingExplorer:
    """Return an explorer with every parameter at work."""
    widget = SamplingExplorer(MadeUp(size), settings=BUSY)
    for _ in range(4):
        widget.sample()
    return widget


def kernel_ms(size: int) -> dict[str, float]:
    """Return CPU milliseconds of one slider step, median and slowest of 40, and of the arithmetic alone."""
    widget, steps, sums = explorer(size), [], []
    logprobs = widget._position.logprobs
    for number in range(STEPS):
        value = 0.5 + 0.03 * number
        start = time.process_time()
        widget.sliders["temperature"].value = value
        steps.append(1e3 * (time.process_time() - start))
        start = time.process_time()
        pipeline(logprobs, widget.settings, output_tokens=widget.output, model=model_step(logprobs))
        sums.append(1e3 * (time.process_time() - start))
    return {
        "tokens": size,
        "step_ms": statistics.median(steps),
        "slowest_ms": max(steps),
        "arithmetic_ms": statistics.median(sums),
    }


def screen_ms() -> dict[str, float]:
    """Return milliseconds from a key press on a slider to the frame that shows the new bars."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        cell = {
            "cell_type": "code",
            "execution_count": None,
            "metadata": {},
            "outputs": [],
            "id": "a",
            "source": NOTEBOOK.format(folder=str(Path(__file__).parent)),
        }
        kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
        Path(folder, "a.ipynb").write_text(
            json.dumps(
                {
                    "cells": [cell],
                    "metadata": {"kernelspec": kernel},
                    "nbformat": 4,
                    "nbformat_minor": 5,
                }
            )
        )
        lab, url = _start_lab(folder)
        try:
            with sync_playwright() as playwright:
                return _measure(playwright, f"{url}lab/tree/a.ipynb?reset&token=bench")
        finally:
            lab.terminate()
            lab.wait(20)


def _start_lab(folder: str) -> tuple[subprocess.Popen, str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    private = {
        name: f"{folder}/{name.lower()}"
        for name in (
            "JUPYTER_CONFIG_DIR",
            "JUPYTERLAB_WORKSPACES_DIR",
            "JUPYTERLAB_SETTINGS_DIR",
            "JUPYTER_RUNTIME_DIR",
        )
    }
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "jupyterlab",
            "--no-browser",
            f"--ServerApp.port={port}",
            "--ServerApp.ip=127.0.0.1",
            "--IdentityProvider.token=bench",
            f"--ServerApp.root_dir={folder}",
            "--allow-root",
            "--LabApp.news_url=None",
        ],
        env={**os.environ, **private, "PYTHONPATH": root},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}/"
    for _ in range(300):
        try:
            urllib.request.urlopen(f"{url}api/status?token=bench", timeout=1)
            return process, url
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("JupyterLab did not start")


def _measure(playwright, address: str) -> dict[str, float]:
    browser = playwright.chromium.launch(
        executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"),
        args=["--no-sandbox", "--disable-dev-shm-usage"],
    )
    page = browser.new_page(viewport={"width": 1400, "height": 1300})
    page.goto(address)
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
    page.wait_for_selector(
        ".jp-NotebookPanel-toolbar .jp-Notebook-ExecutionIndicator[data-status=idle]",
        timeout=60_000,
    )
    handle = page.locator(".widget-slider .noUi-handle").first
    # cells run before the kernel is connected are dropped, or a dialog asks for one: ask again
    for _ in range(20):
        if page.locator(".jp-Dialog .jp-mod-accept").count():
            page.locator(".jp-Dialog .jp-mod-accept").first.click()
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        page.wait_for_timeout(3000)
        if handle.count():
            break
    page.evaluate(WATCH)
    handle.focus()
    for number in range(STEPS):
        page.keyboard.press("ArrowLeft" if number < STEPS / 2 else "ArrowRight")
        page.wait_for_timeout(150)
    times = page.evaluate("window.times")
    browser.close()
    return {"steps": len(times), "screen_ms": statistics.median(times), "slowest_ms": max(times)}


def table(kernel: list[dict], screen: dict) -> str:
    """Return the table of docs/sampling.md."""
    lines = [
        "| tokens listed | arithmetic | one step in the kernel, CPU time | the slowest of 40 |",
        "|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row['tokens']:,} | {row['arithmetic_ms']:.1f} ms | {row['step_ms']:.1f} ms | {row['slowest_ms']:.1f} ms |"
        for row in kernel
    ]
    to_screen = (
        f"To the screen of JupyterLab in Chromium, 8,192 tokens, from the key press to the frame with the new "
        f"bars: {screen['screen_ms']:.0f} ms (median of {screen['steps']} steps; slowest "
        f"{screen['slowest_ms']:.0f} ms). Every parameter switched on; two shared cores."
    )
    return "\n".join([*lines, "", to_screen])


def main() -> None:
    """Measure, print, write."""
    from truth import write_doc

    text = table([kernel_ms(size) for size in VOCABULARIES], screen_ms())
    print(text)
    write_doc(text, "cost")


if __name__ == "__main__":
    main()

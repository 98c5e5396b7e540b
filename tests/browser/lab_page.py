"""A real JupyterLab in headless Chromium, as `workshop lab` opens it: helpers of the browser tests."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
from needs import lacking
from widget_page import address, write_notebook

ROOT = Path(__file__).parents[2]
OUTPUT = ROOT / ".ci" / "output"
# What Chromium would otherwise ask its maker for; the page's own requests are watched below.
FLAGS = [
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--font-render-hinting=none",  # letters are as wide with a window as without
]
IDLE = ".jp-Notebook-ExecutionIndicator[data-status=idle]"


def chromium() -> str:
    """Return Chromium's path; the one without a window needs a fifth less of the processor."""
    for name in ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    lacking("the browser tests need Chromium (Debian: apt install chromium)")
    raise AssertionError


@contextlib.contextmanager
def lab(home: Path, notebooks: Path, *options: str) -> Iterator[str]:
    """Run `workshop lab` with a $WORKSHOP_HOME and a folder for the copies; yield the address that it prints."""
    own = {
        "JUPYTER_CONFIG_DIR": "jupyter",
        "IPYTHONDIR": "ipython",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
    }
    environment = {
        **os.environ,
        "WORKSHOP_HOME": str(home),
        "WORKSHOP_NOTEBOOKS": str(notebooks),
        **{variable: str(notebooks.parent / folder) for variable, folder in own.items()},
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "workshop", "lab", "--no-browser", *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            if match := re.search(r"http://\S+token=\w+", line):
                yield match[0]
                break
        else:
            raise AssertionError("".join(lines))
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


class SharedLab:
    """One JupyterLab for many tests: each writes its notebook, and finds settings and progress as on the first day."""

    def __init__(self, url: str, home: Path, folder: Path):
        self.url, self.home, self.folder = url, home, folder
        self.settings = folder.parent / "settings"  # JupyterLab's own: the theme

    def begin(self) -> None:
        """Forget what the test before has chosen and answered."""
        shutil.rmtree(self.settings, ignore_errors=True)
        (self.home / "progress.json").unlink(missing_ok=True)

    def end(self) -> None:
        """End all kernels."""
        base, token = re.match(r"(http://\S*?)/lab/\S*?token=(\w+)", self.url).groups()
        with httpx.Client(headers={"Authorization": f"token {token}"}) as client:
            for session in client.get(f"{base}/api/sessions").json():
                client.delete(f"{base}/api/sessions/{session['id']}")

    def notebook(self, name: str, *sources: str) -> str:
        """Write a notebook with one code cell for each source, and return its address."""
        write_notebook(self.folder / f"{name}.ipynb", *sources)
        return self.address(f"{name}.ipynb")

    def address(self, path: str) -> str:
        """Return the address of a file of the learner's folder."""
        return address(self.url, path)


class Page:
    """One notebook on screen; collects what must not happen: requests elsewhere, errors in the console."""

    def __init__(self, page):
        self.page, self.elsewhere, self.errors = page, [], []
        page.set_default_timeout(90_000)  # other tests may keep both cores busy
        page.on("request", lambda request: self._request(request.url))
        page.on("console", lambda message: self._console(message))

    def _request(self, url: str) -> None:
        if url.startswith(("http", "ws")) and not re.match(
            r"\w+://(127\.0\.0\.1|localhost)[:/]", url
        ):
            self.elsewhere.append(url)

    def _console(self, message) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def open(self, url: str) -> None:
        """Open a notebook and wait for its kernel."""
        self.page.goto(url)
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=90_000)
        # The notebook's own indicator rests before there is a kernel as well; the status bar knows.
        self.page.locator("#jp-main-statusbar", has_text="| Idle").wait_for(timeout=90_000)

    def run_all(self, timeout_s: float = 180) -> None:
        """Run all cells by the menu and wait until the kernel rests."""
        deadline = time.monotonic() + timeout_s
        prompts = self.page.locator(".jp-CodeCell .jp-InputPrompt")
        self.page.get_by_role("menuitem", name="Run", exact=True).click()
        self.page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        while not prompts.filter(has_text=re.compile(r"\[[*\d]")).count():
            assert time.monotonic() < deadline, "the notebook did not start"
            self.page.wait_for_timeout(100)
        quiet = 0
        while quiet < 10:
            assert time.monotonic() < deadline, "the notebook did not finish"
            waiting = self.page.locator(".jp-InputPrompt", has_text="[*]").count()
            quiet = quiet + 1 if not waiting and self.page.locator(IDLE).count() else 0
            self.page.wait_for_timeout(100)

    def replace(self, old: str, new: str) -> None:
        """Write new text into the code cell that holds the old, and run it; the next cell is then the active one."""
        cell = self.page.locator(".jp-CodeCell", has_text=old).first
        cell.locator(".cm-content").click()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(new)
        self.page.keyboard.press("Shift+Enter")

    def scroll_to(self, selector: str) -> None:
        """Bring an element to the middle of the screen."""
        self.page.locator(selector).first.evaluate(
            "element => element.scrollIntoView({block: 'center'})"
        )
        self.page.wait_for_timeout(300)

    def shot(self, name: str) -> None:
        """Keep a picture as output of CI."""
        OUTPUT.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=OUTPUT / f"{name}.png")

    def failures(self) -> list[str]:
        """Return the texts of cells that ended in an error."""
        return self.page.locator(
            "[data-mime-type='application/vnd.jupyter.stderr']"
        ).all_inner_texts()

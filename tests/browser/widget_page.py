"""Widgets on a page: operate them by their names, read their pictures by their words, and find what is wrong to see."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

PICTURE = ".workshop[role=img]"
# What the eye or a screen reader would miss. Each finder returns one line for each fault.
CUT = """() => [...document.querySelectorAll('.jp-OutputArea-output')].filter(o => o.offsetParent).flatMap(output => {
  const wide = e => e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1;
  const said = e => `${e.className || e.tagName}: ${(e.textContent || '').trim().slice(0, 60)} `
    + `(${e.scrollWidth} in ${e.clientWidth})`;
  const right = output.getBoundingClientRect().right + 1;
  const scrolled = e => [e.closest('[tabindex], .scroll')].some(s => s && s !== output && output.contains(s));
  const looked = '.workshop, .workshop *:not(svg *), .widget-label, .widget-readout, button';
  return [...output.querySelectorAll(looked)].filter(e => {
    if (!e.offsetParent) return false;
    const style = getComputedStyle(e);
    const scrolls = ['auto', 'scroll'].includes(style.overflowX);
    if (scrolls && (e.tabIndex >= 0 || e.matches('.scroll'))) return false;  // code; a drawing that would be too small
    const hides = scrolls || ['hidden', 'clip'].includes(style.overflowX);
    if (hides && e.closest('[title]') && style.textOverflow === 'ellipsis') return false;   // the title has it all
    return (hides && wide(e)) || e.getBoundingClientRect().right > right && !scrolled(e);
  }).map(said).concat(wide(output) ? [said(output)] : []);
})"""
SILENT = """() => [...document.querySelectorAll('.jp-OutputArea-output')].flatMap(output => {
  const named = e => (e.closest('[role][aria-label]') || {getAttribute: () => ''}).getAttribute('aria-label');
  return [...output.querySelectorAll('svg, img, canvas, [role=img], [role=progressbar]')]
    .filter(e => !e.closest('button') && !(e.getAttribute('alt') || named(e) || '').trim())
    .map(e => e.outerHTML.slice(0, 120));
})"""

# Sliders and players that a screen reader could not tell apart, or that it would read another value of than the one in sight.
UNNAMED = """() => {
  const seen = selector => [...document.querySelectorAll(selector)].filter(e => e.offsetParent);
  const silent = seen('.widget-play button').filter(b => !b.ariaLabel).map(() => 'a button of a player has no name');
  return silent.concat(seen('.widget-slider').flatMap(slider => {
    const name = slider.querySelector('.widget-label').textContent, readout = slider.querySelector('.widget-readout');
    const handle = slider.querySelector('.noUi-handle'), wrong = [];
    if (handle.getAttribute('aria-label') !== name) wrong.push(`${name}: its handle has no name`);
    if (readout && readout.getAttribute('aria-label') !== name) wrong.push(`${name}: its field has no name`);
    const said = handle.getAttribute('aria-valuetext');
    return readout && said !== readout.textContent ? [...wrong, `${name}: ${readout.textContent} is said as ${said}`] : wrong;
  }));
}"""


def write_notebook(path: Path, *sources: str, kernel: str = "python3") -> Path:
    """Write a notebook with one code cell for each source."""
    cells = [
        {
            "cell_type": "code",
            "execution_count": None,
            "metadata": {},
            "outputs": [],
            "id": f"cell-{number}",
            "source": source,
        }
        for number, source in enumerate(sources)
    ]
    spec = {"display_name": kernel, "language": "python", "name": kernel}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(
            {"cells": cells, "metadata": {"kernelspec": spec}, "nbformat": 4, "nbformat_minor": 5}
        )
    )
    return path


def address(url: str, name: str) -> str:
    """Return where a notebook of the learner's folder is, from the address that `workshop lab` printed."""
    base, token = re.match(r"(http://\S*?/)lab/\S*?(token=\w+)", url).groups()
    return f"{base}lab/tree/{name}?reset&{token}"


def choose_theme(page, name: str) -> None:
    """Choose a theme by JupyterLab's menu."""
    page.get_by_role("menuitem", name="Settings", exact=True).click()
    item = ".lm-Menu-item:has(.lm-Menu-itemLabel:text-is('{}'))"
    page.locator(item.format("Theme")).hover()
    page.locator(item.format(name)).click()
    is_light = "true" if "Light" in name else "false"
    page.wait_for_selector(f"body[data-jp-theme-light={is_light}]", state="attached")
    page.wait_for_timeout(400)  # its style sheet


class Widget:
    """One widget on the page: its controls by their names, and its picture by what it says to screen readers.

    Args:
        page: Playwright's page.
        says: words of its picture at first; or a locator of the output that it is in.
    """

    def __init__(self, page, says: str | object, picture: str = PICTURE):
        self.page, self._picture = page, picture
        if not isinstance(says, str):
            self.root = says
            return
        output = page.locator(
            ".jp-OutputArea-output", has=page.locator(f"{PICTURE}[aria-label*='{says}']")
        ).last
        output.scroll_into_view_if_needed()
        # its words will change
        output.evaluate("(element, name) => element.setAttribute('data-widget', name)", says)
        self.root = page.locator(f"[data-widget='{says}']")

    def picture(self) -> str:
        """Return what the picture says: its label, or its text where text is the picture."""
        shown = self.root.locator(self._picture).last
        return shown.get_attribute("aria-label") or shown.inner_text()

    def control(self, name: str):
        """Return the control with this label."""
        label = self.page.locator(".widget-label", has_text=re.compile(f"^{name}$"))
        return self.root.locator(".widget-inline-hbox", has=label).first

    def choose(self, name: str, option: str) -> None:
        """Choose in a list."""
        self.changes(lambda: self.control(name).locator("select").select_option(label=option))

    def type(self, name: str, value: str) -> None:
        """Set a slider by its readout and Enter."""
        self._write(self.control(name).locator(".widget-readout"), value)

    def write(self, name: str, value: str) -> None:
        """Fill a text field, and press Enter."""
        self._write(self.control(name).locator("input, textarea"), value)

    def _write(self, field, value: str) -> None:
        def write():
            field.click()
            field.press("Control+A")
            field.type(value)
            field.press("Enter")

        self.changes(write)

    def step(self, name: str, key: str = "ArrowRight") -> None:
        """Move a slider one step by the keyboard."""
        self.changes(lambda: self.control(name).locator(".noUi-handle").press(key))

    def press(self, button: str) -> None:
        """Press a button with these words."""
        self.changes(lambda: self.root.get_by_role("button", name=button).first.click())

    def changes(self, act: Callable[[], object], seconds: float = 20) -> str:
        """Do something and wait until the picture says something else; return what it says then."""
        before = self.picture()
        act()
        for _ in range(int(20 * seconds)):
            if self.picture() != before:
                return self.picture()
            self.page.wait_for_timeout(50)
        raise AssertionError(f"the picture did not change: {before[:200]}")

    def reach_by_tab(self, name: str, most: int = 60) -> None:
        """Press Tab from the top of the widget until the control called `name` has the focus."""
        inside = self.control(name).locator(
            "select, input, textarea, .noUi-handle, [contenteditable=true]"
        )
        self.root.evaluate(
            "root => { const all = root.querySelectorAll('button, select, input, textarea, .noUi-handle,"
            " [contenteditable=true]'); all[0].focus(); }"
        )
        for _ in range(most):
            if inside.evaluate_all("all => all.includes(document.activeElement)"):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"Tab does not reach {name!r}")

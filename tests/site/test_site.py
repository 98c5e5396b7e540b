"""The site: notebooks as pages that read well without a kernel, without scripts and without the internet."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "docs" / "site" / "website.py"


@pytest.fixture
def site_modules():
    """The site's modules, which are scripts and no package."""
    import static_page
    import static_widgets

    return static_page, static_widgets


def state_of(models: dict) -> dict:
    """What a notebook keeps of widgets, by their ids."""
    import ipywidgets as w

    def flat(value):
        if isinstance(value, w.Widget):
            return f"IPY_MODEL_{value.model_id}"
        return [flat(item) for item in value] if isinstance(value, list | tuple) else value

    return {
        key: {
            "model_name": widget._model_name,
            "state": {name: flat(getattr(widget, name)) for name in widget.keys},
        }
        for key, widget in models.items()
    }


def test_controls_become_inputs_with_their_labels_and_values(site_modules):
    import ipywidgets as w

    box = w.VBox(
        [
            w.HTML("<b>picture</b>"),
            w.IntSlider(7, min=1, max=9, description="GPUs"),
            w.FloatSlider(0.925, min=0, max=1, description="utilization", readout_format=".2f"),
            w.SelectionSlider(
                options=[("4k", 4096), ("128k", 131072)], value=131072, description="context"
            ),
            w.Dropdown(options=["h100", "a<100"], value="a<100", description="GPU"),
            w.ToggleButtons(options=["raw", "processed"], value="processed"),
            w.Button(description="Sample"),
            w.Textarea("two\nlines", description="prompt"),
            w.BoundedIntText(16, max=99, description="max_tokens"),
            w.Checkbox(True, description="ticked"),
            w.Play(max=5),
            w.FloatProgress(0.4, max=1.0, description="done"),
            w.Label("words"),
            w.HBox([w.HTML("hidden")], layout=w.Layout(display="none")),
        ]
    )
    models, queue = {}, [box]
    while queue:
        widget = queue.pop()
        models[widget.model_id] = widget
        queue += [
            *getattr(widget, "children", ()),
            *([widget.layout] if hasattr(widget, "layout") else []),
        ]
    drawn = site_modules[1].Widgets(state_of(models)).html(box.model_id)
    assert "<b>picture</b>" in drawn and "hidden" not in drawn
    for name, value in (("GPUs", "7"), ("utilization", "0.93"), ("context", "128k")):
        assert re.search(
            rf'{name}</span><input type="range" disabled [^>]*><output>{value}</output>', drawn
        ), name
    assert "<select disabled><option>a&lt;100</option></select>" in drawn
    assert (
        'w-chosen">processed' in drawn
        and "two\nlines</textarea>" in drawn
        and 'value="16"' in drawn
    )
    assert (
        '<progress max="1.0" value="0.4">' in drawn
        and "<span>words</span>" in drawn
        and " checked>" in drawn
    )
    assert drawn.count("<input") == drawn.count("<input type") and "disabled" in drawn
    enabled = re.findall(r"<(?:input|button|select|textarea)(?![^>]*disabled)[^>]*>", drawn)
    assert not enabled, "nothing pretends that it can be moved"


def test_a_saved_notebook_leaves_defaults_out(site_modules):
    import ipywidgets as w
    from ipywidgets.embed import embed_data

    slider = w.IntSlider(0, description="top_k")
    state = embed_data(views=[slider])["manager_state"]["state"]
    assert "max" not in state[slider.model_id]["state"], "as JupyterLab saves them"
    drawn = site_modules[1].Widgets(state).html(slider.model_id)
    assert 'min="0" max="100" step="1" value="0"><output>0</output>' in drawn


def test_pages_that_the_browser_turns_are_turned_without_a_script(site_modules):
    from ipywidgets.widgets.widget import _instances

    from workshop import GpuField

    field = GpuField("llama-3.1-70b", tokens=128_000)
    drawn = site_modules[1].Widgets(state_of(_instances)).html(field.model_id)
    assert drawn.count('<input type="radio"') == len(field.frames)
    assert 'type="range"' not in drawn and "▶" not in drawn, "nothing pretends that it can be moved"
    *before, chosen = re.findall(r'<input type="radio"[^>]*>', drawn)
    assert chosen.endswith(" checked>") and not any(" checked" in radio for radio in before)
    for frame in field.frames:
        assert drawn.count(f">{frame.text}<") == 1
    assert ".w-stack > input:checked + .w-page { display: block; }" in site_modules[0].stylesheet()


def test_a_widget_that_cannot_be_drawn_is_no_silent_gap(site_modules):
    with pytest.raises(KeyError, match="ColorPicker"):
        site_modules[1].Widgets({"a": {"model_name": "ColorPickerModel", "state": {}}}).html(
            "IPY_MODEL_a"
        )


def test_formulas_are_drawn_and_code_and_prices_stay(site_modules):
    page = site_modules[0]
    drawn = page.with_formulas(r"so $y = f(x W_1) W_2$ and `$HOME` and $5 or $6 and ``a $b$ c``")
    assert drawn.count("<img") == 1 and 'alt="y = f(x W_1) W_2"' in drawn
    assert "`$HOME`" in drawn and "``a $b$ c``" in drawn
    assert "http" not in re.sub(r'src="[^"]*"', "", drawn)


def test_every_notebook_becomes_a_page_with_its_neighbours(tmp_path):
    command = [sys.executable, str(BUILD), "--saved", "--no-live", "--to", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
    assert sorted(path.stem for path in tmp_path.glob("*.html")) == sorted(
        [*names, "index", "summary_cards", *(path.stem for path in (ROOT / "docs").glob("*.md"))]
    )
    for path in tmp_path.glob("*.html"):
        text = path.read_text()
        assert ".ipynb" not in " ".join(re.findall(r'href="([^"]*)"', text)), "links lead to pages"
        for target in re.findall(r'href="([^":#]+)"', text):
            assert (tmp_path / target).exists(), f"{path.name} leads to {target}"
        assert "<script" not in text and "@import" not in text and "<link" not in text
    index = (tmp_path / "index.html").read_text()
    assert all(f'href="{name}.html"' in index for name in names)


def test_pyodide_of_an_earlier_lock_is_replaced(tmp_path, monkeypatch, site_modules):
    from live import pages

    def locked(path: Path, integrity: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            json.dumps({"packages": {"": {}, "node_modules/pyodide": {"integrity": integrity}}})
        )

    def npm(command: list[str], cwd: Path, **_) -> subprocess.CompletedProcess:
        commands.append(command)
        shutil.copy(cwd / "package-lock.json", cwd / "node_modules" / ".package-lock.json")
        return subprocess.CompletedProcess(command, 0)

    commands = []
    locked(tmp_path / "package-lock.json", "sha512-new")
    locked(tmp_path / "node_modules" / ".package-lock.json", "sha512-old")
    monkeypatch.setattr(pages, "HERE", tmp_path)
    monkeypatch.setattr(pages.shutil, "which", lambda _: "npm")
    monkeypatch.setattr(pages.subprocess, "run", npm)
    pages.fetch()
    pages.fetch()
    assert [command[:2] for command in commands] == [["npm", "ci"]], "once: afterwards it is there"


def test_what_is_no_jupyterlite_is_never_cleared(tmp_path, site_modules):
    from lite import build as lite
    from live import pages

    folder = tmp_path / "mine"
    folder.mkdir()
    lite.make_room(folder)
    (folder / "thesis.txt").write_text("years of work")
    (folder / "jupyter-lite.json").write_text("{}")
    for place in (folder, folder / "thesis.txt"):
        with pytest.raises(pages.CannotBuild, match="left as it is"):
            lite.make_room(place)
    assert (folder / "thesis.txt").read_text() == "years of work"
    (folder / "lab").mkdir()
    lite.make_room(folder)
    assert not folder.exists()


@pytest.mark.parametrize(
    "name", ["aiohttp", "grp", "httpx", "numpy", "openai", "pandas", "psutil", "uvloop", "yarl"]
)
def test_what_no_browser_has_can_be_imported_and_says_so_when_it_is_used(name):
    folder = BUILD.parent / "lite" / "stand_ins"
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); import {name}; {name}.post"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True)
    message = f"ModuleNotFoundError: {name} is not in this page's Python: run this cell in JupyterLab (make workshop)."
    assert done.stderr.splitlines()[-1] == message

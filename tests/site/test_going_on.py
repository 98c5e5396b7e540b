"""A site whose build is stopped has its index, says what is missing, and goes on from there."""

from __future__ import annotations

import importlib
import signal
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = ("00_start", "01_memory", "02_parallelism")


@pytest.fixture
def build(monkeypatch, tmp_path):
    """The script, and a function that runs it on three notebooks as they are saved."""
    monkeypatch.delitem(sys.modules, "website", raising=False)
    module = importlib.import_module("website")
    handler = signal.getsignal(signal.SIGTERM)
    rendered: list[str] = []
    fault: dict[str, BaseException] = {}

    def render(chapter, run):
        if chapter.name in fault:
            raise fault[chapter.name]
        rendered.append(chapter.name)
        return f"<p>{chapter.name}</p>"

    monkeypatch.setattr(module, "render", render)
    monkeypatch.setattr(module, "digest_of_sources", lambda: "one version")

    # test_site.py renders them all
    monkeypatch.setattr(module, "DOCUMENTS", [ROOT / "docs" / "batch.md"])

    def run(*options: str, names: tuple[str, ...] = NAMES) -> int:
        rendered.clear()
        arguments = ["website.py", "--to", str(tmp_path), "--saved", "--no-live"]
        monkeypatch.setattr(sys, "argv", [*arguments, "--only", *names, *options])
        return module.main()

    run.rendered = rendered
    run.fault = fault
    run.module = module
    yield run
    signal.signal(signal.SIGTERM, handler)
    sys.modules.pop("website", None)


def test_a_build_that_is_stopped_has_an_index_and_goes_on(build, tmp_path, capsys):
    build.fault["01_memory"] = KeyboardInterrupt()
    assert build() == 1
    assert (tmp_path / "index.html").is_file() and (tmp_path / "batch.html").is_file()
    printed = capsys.readouterr()
    assert "2 of 3 notebooks are missing" in printed.out and "Traceback" not in printed.err
    build.fault.clear()
    assert build() == 0
    assert build.rendered == ["01_memory", "02_parallelism"]
    assert build() == 0 and build.rendered == []
    assert build("--fresh") == 0 and build.rendered == list(NAMES)


def test_an_unknown_notebook_is_wrong_use(build, tmp_path, capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        build(names=("99_none",))
    assert "there are: 00_start" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_page_is_built_anew_if_its_sources_changed(build, tmp_path, monkeypatch):
    assert build() == 0
    page = tmp_path / "00_start.html"
    page.write_text(page.read_text()[:-40])  # cut, by a full disk
    assert build() == 0 and build.rendered == ["00_start"]
    monkeypatch.setattr(build.module, "digest_of_sources", lambda: "another version")
    assert build() == 0 and build.rendered == list(NAMES)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError(), "ValueError"),
        (ValueError("\n"), "ValueError"),
        (ValueError("a\nb"), "b"),
        (ValueError("a\n\x1b[31mNameError\x1b[39m: no such name"), "NameError: no such name"),
    ],
)
def test_an_error_is_its_last_line_without_colors_or_its_kind(build, error, message):
    assert build.module.last_line(error) == message


def test_what_npm_and_pip_have_installed_makes_no_page_anew(build, tmp_path, monkeypatch):
    monkeypatch.undo()  # the real digest
    site = tmp_path / "tools" / "site"  # a checkout may lie in a folder of any name
    (site / "lite" / "tools").mkdir(parents=True)
    (site / "website.py").write_text("first")
    monkeypatch.setattr(build.module, "__file__", str(site / "website.py"))
    before = build.module.digest_of_sources()
    (site / "lite" / "tools" / "pip.py").write_text("new")
    assert build.module.digest_of_sources() == before
    (site / "website.py").write_text("second")
    assert build.module.digest_of_sources() != before

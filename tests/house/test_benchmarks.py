"""Every script of benchmarks/ starts: most need a GPU, a server or minutes, but what they import moves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import tree

ROOT = Path(__file__).parents[2]
LEFT_OUT = {
    # vLLM's worker alone loads this one, and importing it changes that worker.
    ROOT / "benchmarks/gpu/measure_worker.py",
    # Imports vLLM's kernels and nothing of ours: 60 s of a processor.
    ROOT / "benchmarks/gpu/expert_kernels.py",
}
START = """
import contextlib, io, runpy, sys, traceback
from pathlib import Path

root = Path(sys.argv[1])
folders = list(sys.path)
failed = []
for script in map(Path, sys.argv[2:]):
    text = script.read_text(encoding="utf-8")
    sys.path[:] = [str(script.parent), str(root), *folders]
    sys.argv = [str(script), "--help"]
    name = "benchmark"
    if "ArgumentParser(" in text or "@click.command" in text:
        name = "__main__"
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(str(script), run_name=name)
    except SystemExit as end:
        if end.code:
            failed.append(f"{script}: exit {end.code}")
    except BaseException:
        failed.append(f"{script}: {traceback.format_exc()}")
    for module_name, module in list(sys.modules.items()):  # two folders have a measure.py
        if str(getattr(module, "__file__", "")).startswith(f"{root}/benchmarks/"):
            del sys.modules[module_name]
sys.exit("\\n".join(failed) or 0)
"""


def test_every_benchmark_can_be_imported_or_shows_its_options():
    scripts = sorted({*(ROOT / "benchmarks").rglob("*.py")} - LEFT_OUT)
    command = [sys.executable, "-P", "-c", START, str(ROOT), *map(str, scripts)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


def test_a_data_file_is_named_by_a_page_a_script_or_a_record():
    comparison = json.loads((ROOT / "tests/data/simulate/comparison.json").read_text())
    records = {row["record"] for row in comparison}  # each with its file of predictions
    suffixes = (".json", ".md", ".py")
    texts = {
        path: path.read_text(encoding="utf-8")
        for path in tree.files()
        if path.suffix in suffixes and path.name != "CHANGELOG.md"
    }
    unnamed = []
    for path in [*tree.files("benchmarks", ".json"), *tree.files("tests/data/gpu", ".json")]:
        if path.parent.name == "predictions" and path.stem in records:
            continue
        if not any(path.stem in text for other, text in texts.items() if other != path):
            unnamed.append(str(path.relative_to(ROOT)))
    assert not unnamed

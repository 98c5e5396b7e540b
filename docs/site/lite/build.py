"""Build the course as a JupyterLab that runs in the browser alone: `make lite` → site/lite/.

    python docs/site/lite/build.py [--to site/lite] [--serve [PORT]]

Python is Pyodide's; every package that it gets is pure Python, taken from this environment, and lies beside it, so
nothing is asked of any other host. `connect()` gives the teaching model, computed in the page. What is compiled for no
browser (NumPy, pandas, matplotlib, vLLM) says so in the cell that uses it.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import http.server
import importlib.metadata
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE.parent))
from live import pages  # noqa: E402

from workshop.lab import course_pages, solutions  # noqa: E402

TOOLS = HERE / "tools"
NOTEBOOKS = ROOT / "notebooks"
OURS = "distributed-inference-workshop"
# of the package and of its kernel
NEEDED = "ipython", "ipywidgets", "pyyaml", "jinja2", "prometheus-client"
# what they draw in and a page has no use for
NOT_HERE = {"pexpect", "psutil", "colorama", "widgetsnbextension"}
# What a page has no use for, and imports: each says so when it is used. Those that do more are in stand_ins/.
UNAVAILABLE = ("aiohttp", "grp", "pandas", "pydantic", "uvloop", "yarl")
STAND_IN = 'from not_here import missing\n\n__getattr__ = missing("{}")\n'
# it asks the machine, and its parser is all that is used of it
UNREAD = {"prometheus_client/__init__.py"}
# A browser gives a page from a file no modules and no workers.
FROM_A_FILE = """<script>
if (location.protocol === "file:") {
  document.title = "This JupyterLab needs a web server";
  addEventListener("DOMContentLoaded", () => document.body.replaceChildren(
    "This JupyterLab needs a web server. One, in this folder: python3 -m http.server --bind 127.0.0.1 — then open http://127.0.0.1:8000. (first.html, plan.html and xray.html beside it open by double click.)"));
}
</script>"""
SETTINGS = {
    "jupyter-config-data": {
        "appName": "Distributed LLM inference with vLLM",
        "litePluginSettings": {
            "@jupyterlite/pyodide-kernel-extension:kernel": {
                "loadPyodideOptions": {
                    "packages": [OURS],
                    "env": {"HOME": "/home/pyodide", "WORKSHOP_HOME": "/drive/my-progress"},
                }
            }
        },
    }
}


def main() -> int:
    """Build, and say how to open it; or serve it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--to", type=Path, default=ROOT / "site" / "lite", help="folder (site/lite)"
    )
    parser.add_argument(
        "--serve",
        type=int,
        nargs="?",
        const=8000,
        metavar="PORT",
        help="serve it afterwards (8000)",
    )
    options = parser.parse_args()
    try:
        build(options.to)
    except pages.CannotBuild as error:
        print(f"✗ {error}", file=sys.stderr)
        return 1
    print(
        f"✓ {options.to}: {sum(path.stat().st_size for path in options.to.rglob('*') if path.is_file()) / 1e6:.0f} MB"
    )
    print(
        f"  Any web server will do; one: python3 -m http.server --bind 127.0.0.1 --directory {options.to}"
    )
    if options.serve is not None:
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=options.to)
        with http.server.ThreadingHTTPServer(("127.0.0.1", options.serve), handler) as server:
            print(
                f"  http://127.0.0.1:{server.server_port}/lab/index.html?path=00_start.ipynb   (Ctrl-C ends it)",
                flush=True,
            )
            server.serve_forever()
    return 0


def build(to: Path) -> None:
    """Write the site.

    Raises:
        pages.CannotBuild: something that it is built with cannot be had.
    """
    pages.fetch()
    python = tools()
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        pyodide(project / "static" / "pyodide")
        (project / "files").mkdir()
        for path in [*NOTEBOOKS.glob("*.ipynb")]:
            (project / "files" / path.name).write_text(for_the_page(path))
        for name, content in course_pages.linked_pages(NOTEBOOKS, "{}.ipynb".format).items():
            page = project / "files" / name
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_bytes(content)
        (project / "jupyter-lite.json").write_text(
            json.dumps({"jupyter-lite-schema-version": 0, **SETTINGS})
        )
        make_room(to)
        command = ["-P", "-m", "jupyterlite_core.app", "build", "--lite-dir", ".", "--output-dir", str(to.resolve()),
                   "--contents", "files", "--no-sourcemaps", "--apps", "lab"]  # fmt: skip
        site = next(path for path in sys.path if path.endswith("site-packages"))
        done = subprocess.run([python, *command], cwd=project, capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": site})  # fmt: skip
    if done.returncode:
        raise pages.CannotBuild(
            f"JupyterLite could not be built: {(done.stderr or done.stdout).strip().splitlines()[-1]}"
        )
    for name in ("index.html", "lab/index.html"):
        text = (to / name).read_text()
        (to / name).write_text(text.replace("<head>", f"<head>{FROM_A_FILE}", 1))


def make_room(to: Path) -> None:
    """Clear an earlier site; what is none is never touched.

    Raises:
        pages.CannotBuild: something else lies there.
    """
    if (to / "jupyter-lite.json").is_file() and (to / "lab").is_dir() and not to.is_symlink():
        shutil.rmtree(to)
    elif to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise pages.CannotBuild(
            f"{to} holds something that is no JupyterLite; it is left as it is. Give --to a new folder."
        )


def tools() -> Path:
    """Return the Python of an environment with what this is built with, made where it is not there."""
    python, wanted = TOOLS / "bin" / "python", (HERE / "requirements.txt").read_text()
    mark = TOOLS / "made-for.txt"
    if mark.is_file() and mark.read_text() == wanted:
        return python
    shutil.rmtree(TOOLS, ignore_errors=True)
    run([sys.executable, "-P", "-m", "venv", TOOLS])
    run(
        [
            python,
            "-P",
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--require-hashes",
            "-r",
            HERE / "requirements.txt",
        ]
    )
    mark.write_text(wanted)
    return python


def run(command: Iterable[object]) -> None:
    """Run a command that fetches something; its last line is the reason where it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise pages.CannotBuild(
            f"It could not be fetched: {(done.stderr or done.stdout).strip().splitlines()[-1]}"
        )


def pyodide(to: Path) -> None:
    """Lay Pyodide and all wheels into a folder, with a lock that names these alone."""
    to.mkdir(parents=True)
    for name in (
        "pyodide.mjs",
        "pyodide.js",
        "pyodide.asm.mjs",
        "pyodide.asm.wasm",
        "python_stdlib.zip",
    ):
        shutil.copy(pages.PYODIDE / name, to)
    run([sys.executable, "-P", "-m", "pip", "download", "-q", "--no-deps", "--require-hashes", "--only-binary=:all:",
         "--python-version", "3.14", "--platform", "any", "-d", to, "-r", HERE / "in_the_page.txt"])  # fmt: skip
    packages = {}
    for wheel in to.glob("*.whl"):
        packages["micropip"] = entry(wheel, "micropip", ("packaging",))
    drawn_in = requirements("packaging", *NEEDED)
    for name, depends in {**drawn_in, OURS: NEEDED}.items():
        version = importlib.metadata.version(name)
        wheel = to / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        wheel.write_bytes(ours() if name == OURS else pure(name))
        packages[name] = entry(wheel, name, depends)
    lock = json.loads((pages.PYODIDE / "pyodide-lock.json").read_text())
    (to / "pyodide-lock.json").write_text(json.dumps({**lock, "packages": packages}))


def requirements(*names: str) -> dict[str, list[str]]:
    """Return distributions of this environment with what they draw in, each by its name: those it requires."""
    required: dict[str, list[str]] = {}
    for name in names:
        if name not in required:
            direct = [Requirement(text) for text in importlib.metadata.requires(name) or ()]
            wanted = [
                canonicalize_name(requirement.name)
                for requirement in direct
                if not requirement.marker or requirement.marker.evaluate({"extra": ""})
            ]
            required[name] = [dependency for dependency in wanted if dependency not in NOT_HERE]
            required |= {
                key: value
                for key, value in requirements(*required[name]).items()
                if key not in required
            }
    return required


def entry(wheel: Path, name: str, depends: Iterable[str]) -> dict:
    """Return what Pyodide's lock says of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        tops = {inside.split("/")[0].removesuffix(".py") for inside in archive.namelist()}
    return {
        "name": name, "version": wheel.name.split("-")[1], "file_name": wheel.name, "install_dir": "site",
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(), "package_type": "package",
        "imports": sorted(top for top in tops if "." not in top), "depends": list(depends), "unvendored_tests": False,
    }  # fmt: skip


def pure(name: str) -> bytes:
    """Return a wheel of a distribution of this environment, without what is compiled."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in importlib.metadata.files(name) or ():
            inside = str(path)
            if not inside.startswith("..") and not re.search(
                r"\.(so|pyd|pyc|pyi|c)$|/tests?/|^share/", inside
            ):
                archive.writestr(inside, b"" if inside in UNREAD else path.read_binary())
    return packed.getvalue()


def ours() -> bytes:
    """Return a wheel of the package with its model, and with what stands in for a server and for NumPy."""
    packed = io.BytesIO()
    overlay = {
        "workshop/client/client.py": HERE / "connect.py",
        "workshop/client/page_client.py": HERE / "page_client.py",
        "workshop/client/llama.js": HERE / "llama.js",
    }
    version = importlib.metadata.version(OURS)
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((ROOT / "workshop").rglob("*")):
            inside = path.relative_to(ROOT)
            left_out = "__pycache__" in inside.parts
            if path.is_file() and not left_out and str(inside) not in overlay:
                archive.write(path, inside)
        for path in sorted((ROOT / "planner" / "inference_planner").rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(ROOT / "planner"))
        read = [
            *NOTEBOOKS.glob("*.ipynb"),
            *(path for path in (ROOT / "slurm").rglob("*") if path.suffix in (".sh", ".sbatch")),
            *(ROOT / "kubernetes" / "components").rglob("*.yaml"),
        ]
        # the map is drawn of these, scripts and manifests are shown
        course = {str(path.relative_to(ROOT)): path for path in read}
        for inside, path in {**overlay, **course}.items():
            archive.write(path, inside)
        for inside, text in stand_ins().items():
            archive.writestr(inside, text)
        about = f"Metadata-Version: 2.1\nName: {OURS}\nVersion: {version}\n"
        archive.writestr(f"{OURS.replace('-', '_')}-{version}.dist-info/METADATA", about)
    return packed.getvalue()


def stand_ins() -> dict[str, str]:
    """Return the modules that answer for packages that no browser has, by their paths in the wheel."""
    modules = {f"{name}.py": STAND_IN.format(name) for name in UNAVAILABLE}
    folder = HERE / "stand_ins"
    for path in sorted(folder.rglob("*.py")):
        modules[str(path.relative_to(folder))] = path.read_text(encoding="utf-8")
    return modules


def for_the_page(path: Path) -> str:
    """Return a notebook for Pyodide's kernel."""
    published = solutions.held_back(course_pages.with_links_inside(path.read_bytes()))
    notebook = json.loads(published)
    notebook["metadata"]["kernelspec"] = {
        "name": "python",
        "display_name": "Python (in this page)",
        "language": "python",
    }
    return json.dumps(notebook)


if __name__ == "__main__":
    sys.exit(main())

"""Build the pages that are live without a server: `plan.html`, `explorer.html`, each one file with everything in it.

Python itself (Pyodide, from npm), the package's pure modules and their data are packed into the page.
"""

from __future__ import annotations

import base64
import gzip
import html
import io
import json
import shutil
import subprocess
import zipfile
from pathlib import Path

from static_page import page

from workshop.course.widgets.xray.case import Replay
from workshop.course.widgets.xray.case import page as x_ray_page
from workshop.engine import trace

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PYODIDE = HERE / "node_modules" / "pyodide"
NOT_HERE = ("cli", "batch", "simulate", "teaching_model")  # rooms that need a machine
PAGES = {
    "plan": ("Plan a deployment", "Which GPUs, how many, split how, and what fits on them: for any model of the catalog, or a config.json that you paste.",
             {"memory": "What fills each GPU", "paste": "Another model", "planner": "The whole planner", "split": "How to split a model over GPUs"}),
    "explorer": ("Explore sampling and the KV cache", "What temperature, top_k and the penalties do to the next token; what a model was sure of; how requests fill a KV cache. The course's teaching model computes them, in this page.",
                 {"sampling": "The next token", "logprobs": "How sure was the model?", "cache": "The KV cache"}),
}  # fmt: skip


MODEL = ROOT / "workshop" / "teaching_model"
MODEL_FILES = {
    "config.json",
    "tokenizer.json",
    *(f"model-0000{part}-of-00004.safetensors" for part in range(1, 5)),
}
WITH_MODEL = ("explorer",)


XRAY = (
    "Watch the engine work",
    "vLLM's steps, one by one, as recorded from the teaching model: which requests, how many tokens, which KV blocks; predict the next one.",
)


class CannotBuild(Exception):
    """What is missing, in a sentence."""


def build(to: Path) -> list[Path]:
    """Write each page; return their paths."""
    fetch()
    to.mkdir(parents=True, exist_ok=True)
    packed = {
        "wasm": gz((PYODIDE / "pyodide.asm.wasm").read_bytes()),
        "stdlib": gz((PYODIDE / "python_stdlib.zip").read_bytes()),
        "loader": gz((PYODIDE / "pyodide.mjs").read_bytes()),
        "module": gz((PYODIDE / "pyodide.asm.mjs").read_bytes()),
        "lock": gz(
            json.dumps(
                {**json.loads((PYODIDE / "pyodide-lock.json").read_text()), "packages": {}}
            ).encode()
        ),
        "ours": gz(package()),
    }
    model = {"llama": gz((HERE / "llama.js").read_bytes())}
    model |= {
        path.name: gz(path.read_bytes())
        for path in sorted(MODEL.iterdir())
        if path.name in MODEL_FILES
    }
    written = []
    for name in PAGES:
        path = to / f"{name}.html"
        path.write_text(page_of(name, packed | (model if name in WITH_MODEL else {})))
        written.append(path)
    return [*written, xray(to)]


def xray(to: Path) -> Path:
    """Write the X-ray of the trace that comes with the course."""
    steps = trace.read(ROOT / "workshop" / "data" / "traces" / "teaching_model.jsonl")
    replay = Replay(f"vLLM with the teaching model · {len(steps)} steps")
    replay.extend(steps)
    path = to / "xray.html"
    path.write_text(x_ray_page(replay.data()), encoding="utf-8")
    return path


def fetch() -> None:
    """Have npm install the locked Pyodide, where it is not there or is that of an earlier lock.

    Raises:
        CannotBuild: there is no npm, or it fails.
    """
    installed = HERE / "node_modules" / ".package-lock.json"  # npm's note of what it has installed
    if installed.is_file() and packages(installed) == packages(HERE / "package-lock.json"):
        return
    if not shutil.which("npm"):
        raise CannotBuild(
            "The live pages need Node 18 or newer with npm: apt-get install nodejs npm."
        )
    done = subprocess.run(
        ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        cwd=HERE,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise CannotBuild(
            f"npm could not install Pyodide: {(done.stderr or done.stdout).strip().splitlines()[-1]}"
        )


def packages(lock: Path) -> dict[str, str]:
    """Return the hash of each package that a lock of npm's names."""
    return {
        name: entry["integrity"]
        for name, entry in json.loads(lock.read_text())["packages"].items()
        if name
    }


def package() -> bytes:
    """Return a ZIP of the package without the rooms that need a machine, and of what stands in for ipywidgets."""
    packed = io.BytesIO()
    with zipfile.ZipFile(
        packed, "w", zipfile.ZIP_STORED
    ) as archive:  # it is compressed with the page
        for path in sorted((ROOT / "workshop").rglob("*")):
            inside = path.relative_to(ROOT)
            if (
                path.is_file()
                and "__pycache__" not in inside.parts
                and inside.parts[1] not in NOT_HERE
            ):
                archive.write(path, inside)
        for path in sorted((ROOT / "planner" / "inference_planner").rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(ROOT / "planner"))
        for name in ("page.py", "planner.py", "client.py"):
            archive.write(HERE / name, name)
        for path in sorted((HERE.parent / "stand_ins").rglob("*.py")):
            archive.write(path, path.relative_to(HERE.parent))
    return packed.getvalue()


def gz(content: bytes) -> str:
    """Return bytes compressed, as text that a page can hold."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def page_of(name: str, packed: dict[str, str]) -> str:
    """Return the page, whole."""
    title, about, parts = PAGES[name]
    sections = "".join(
        f'<section><h2>{html.escape(heading)}</h2><div id="{part}" class="widget">…</div></section>'
        for part, heading in parts.items()
    )
    body = f'<h1>{html.escape(title)}</h1><p>{html.escape(about)}</p><p id="state" role="status">This page is read …</p>{sections}'
    data = "".join(
        f'<script type="application/gzip" id="{id_}"{" class=model" * (id_ in MODEL_FILES)}>{text}</script>\n'
        for id_, text in packed.items()
    )
    text = page(title, body).replace("<body>", f'<body class="live" data-page="{name}">')
    script = f'{data}<script type="module">\n{(HERE / "start.js").read_text()}</script>'
    return text.replace("</style>", f"\n{(HERE / 'live.css').read_text()}</style>").replace(
        "</body>", f"{script}</body>"
    )

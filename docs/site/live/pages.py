"""Build the pages that answer without a server: `first.html`, `plan.html`, with the planner in it, and `xray.html`.

The page of the planner is one file: Pyodide (from npm), `inference_planner` and a form of its settings.
"""

from __future__ import annotations

import base64
import gzip
import html
import io
import json
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterable
from dataclasses import Field
from pathlib import Path

from inference_planner import catalog
from inference_planner.catalog.quantization import METHODS
from inference_planner.releases import versions
from inference_planner.request import SETTINGS
from inference_planner.split.communication import NETWORKS
from inference_planner.split.settings import DTYPES
from live import first_page
from static_page import COLORS, page

from workshop.course.widgets.xray.case import Replay
from workshop.course.widgets.xray.case import page as x_ray_page
from workshop.engine import trace

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PYODIDE = HERE / "node_modules" / "pyodide"
# name -> title, and what it is for
PAGES = {
    "first": (first_page.TITLE, first_page.ABOUT),
    "plan": (
        "Plan a deployment",
        "Which GPUs, how many, split how, and what fits on them: for any model of the catalog, or a config.json "
        "that you paste. The planner runs in this page; nothing that you type leaves it.",
    ),
    "xray": (
        "Watch the engine work",
        "vLLM's steps, one by one, as recorded from the teaching model: which requests, how many tokens, which KV "
        "blocks; predict the next one.",
    ),
}
MODEL, GPU = "llama-3.1-70b", "h100"  # what the form begins with
# The settings that are shown at once; all others are in a fold.
FIRST = (
    "gpus_per_node",
    "nodes",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "max_model_len",
    "max_num_seqs",
    "quantization",
    "kv_cache_dtype",
    "gpu_memory_utilization",
    "enforce_eager",
)
CHOICES: dict[str, Iterable[str]] = {
    "quantization": METHODS,
    "dtype": ("auto", *DTYPES),
    "network": NETWORKS,
    "vllm_version": reversed(list(versions.TABLE)),
}
DEFAULT = re.compile(r"\s*\[default: ([^;\]]*)[^\]]*\]")


class CannotBuild(Exception):
    """What is missing, in a sentence."""


def build(to: Path) -> list[Path]:
    """Write each page; return their paths."""
    fetch()
    to.mkdir(parents=True, exist_ok=True)
    steps = trace.read(ROOT / "workshop" / "data" / "traces" / "teaching_model.jsonl")
    replay = Replay(f"vLLM with the teaching model · {len(steps)} steps")
    replay.extend(steps)
    first = first_page.first_page(packed)
    pages = {"first": first, "plan": plan_page(), "xray": x_ray_page(replay.data())}
    for name, text in pages.items():
        (to / f"{name}.html").write_text(text, encoding="utf-8")
    return [to / f"{name}.html" for name in pages]


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
            "Python in a page needs Node 18 or newer with npm, to build: apt-get install nodejs npm."
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


def plan_page() -> str:
    """Return the page of the planner, whole."""
    title, about = PAGES["plan"]
    body = (
        f"<h1>{title}</h1><p>{about}</p><div class='plan'>{form()}"
        '<section id="answer" aria-live="polite"><p role="status">This page is read …</p></section></div>'
    )
    lock = json.loads((PYODIDE / "pyodide-lock.json").read_text())
    parts = {
        "wasm": (PYODIDE / "pyodide.asm.wasm").read_bytes(),
        "stdlib": (PYODIDE / "python_stdlib.zip").read_bytes(),
        "loader": (PYODIDE / "pyodide.mjs").read_bytes(),
        "module": (PYODIDE / "pyodide.asm.mjs").read_bytes(),
        "lock": json.dumps({**lock, "packages": {}}).encode(),
        "planner": planner(),
    }
    data = "".join(
        f'<script type="application/gzip" id="{name}">{packed(content)}</script>\n'
        for name, content in parts.items()
    )
    script = f'{data}<script type="module">\n{(HERE / "plan.js").read_text()}</script>'
    look = f".plan {{ {COLORS} }}\n{(HERE / 'plan.css').read_text()}"
    text = page(title, body).replace("</style>", f"\n{look}</style>")
    return text.replace("</body>", f"{script}</body>")


def form() -> str:
    """Return the form: the model, the GPU, and every setting of a plan."""
    settings = {setting.name: field(setting) for setting in SETTINGS}
    first = "".join(settings.pop(name) for name in FIRST)
    models = control("model", catalog.list_models(), MODEL)
    gpus = control("gpu", catalog.list_gpus(), GPU)
    pasted = (
        '<textarea name="config" rows="5" aria-label="config.json" spellcheck="false" '
        'placeholder=\'{"architectures": ["LlamaForCausalLM"], …}\'></textarea>'
    )
    return (
        f'<form autocomplete="off"><div class="fields">{label("model", models)}{label("gpu", gpus)}{first}</div>'
        f"<details><summary>Another model: paste its config.json</summary>{pasted}</details>"
        f'<details><summary>All other settings</summary><div class="fields">{"".join(settings.values())}</div>'
        "</details></form>"
    )


def field(setting: Field) -> str:
    """Return a setting with its control and, as a hint, its meaning."""
    about = setting.metadata["help"]
    default = DEFAULT.search(about)
    unset = default[1] if default else ""
    return label(setting.name, control_of(setting, unset), DEFAULT.sub("", about))


def control_of(setting: Field, unset: str) -> str:
    """Return the control of a setting; `unset`: what counts where it is left empty."""
    kind = str(setting.type).removesuffix(" | None")
    choices = setting.metadata["choices"] or CHOICES.get(setting.name)
    if str(setting.type) == "bool":
        return f'<input type="checkbox" name="{setting.name}" value="yes">'
    if kind == "bool":
        choices = ("yes", "no")
    if choices:
        return control(setting.name, map(str, choices), setting.default, unset)
    placeholder = html.escape(unset, quote=True)
    if setting.metadata["unit"] or kind not in ("int", "float"):
        return f'<input name="{setting.name}" placeholder="{placeholder}" spellcheck="false">'
    limits = 'min="1"' if kind == "int" else 'min="0" step="any"'
    return f'<input type="number" name="{setting.name}" {limits} placeholder="{placeholder}">'


def control(name: str, choices: Iterable[str], chosen: str | None, unset: str = "") -> str:
    """Return a list to choose from; without a value that is chosen, its first line is empty."""
    empty = "" if chosen else f'<option value="">{html.escape(unset) or "–"}</option>'
    options = "".join(
        f"<option{' selected' * (choice == chosen)}>{html.escape(choice)}</option>"
        for choice in choices
    )
    return f'<select name="{name}">{empty}{options}</select>'


def label(name: str, drawn: str, hint: str = "") -> str:
    """Return a control with its name and a hint."""
    more = f"<small>{html.escape(hint)}</small>" if hint else ""
    return f"<label><span>{name.replace('_', '_<wbr>')}</span>{drawn}{more}</label>"


def planner() -> bytes:
    """Return a ZIP of `inference_planner` and of what draws its plans."""
    archived = io.BytesIO()
    # it is compressed with the page
    with zipfile.ZipFile(archived, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted((ROOT / "planner" / "inference_planner").rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(ROOT / "planner"))
        archive.write(HERE / "plan_page.py", "plan_page.py")
    return archived.getvalue()


def packed(content: bytes) -> str:
    """Return bytes compressed, as text that a page can hold."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()

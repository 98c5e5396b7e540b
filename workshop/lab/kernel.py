"""Make the course's kernel and its widgets known to a JupyterLab of another environment.

Open OnDemand runs such a JupyterLab.
"""

import contextlib
import json
import os
import shlex
import shutil
import sys
from pathlib import Path

import psutil

from workshop import install_words, own_packages
from workshop.errors import WorkshopError
from workshop.home import writing
from workshop.lab import learner_copies, terminal

NAME, TITLE = "vllm-workshop", "vLLM workshop"
MANAGER = Path("labextensions/@jupyter-widgets/jupyterlab-manager")


def data_folders() -> tuple[Path, Path]:
    """Return Jupyter's data folders: this environment's, and this user's.

    Every JupyterLab of the user reads the second.
    """
    from jupyter_core.paths import jupyter_data_dir

    return Path(sys.prefix) / "share" / "jupyter", Path(jupyter_data_dir())


def serving_prefix() -> str:
    """Return the environment of the JupyterLab that this kernel or terminal runs under, or ''."""
    with contextlib.suppress(psutil.Error):
        for parent in psutil.Process().parents():
            with contextlib.suppress(psutil.Error):
                arguments = parent.cmdline()
                if not any("jupyter" in Path(argument).name for argument in arguments[:3]):
                    continue
                if not arguments[0].startswith("/"):
                    return ""
                return str(Path(arguments[0]).parent.parent)
    return ""


def _ignore_current_folder(spec: Path) -> None:
    """Have the kernel start with -P: files beside a notebook must not replace packages."""
    kernel = json.loads(spec.read_text(encoding="utf-8"))
    kernel["argv"].insert(1, "-P")
    spec.write_text(json.dumps(kernel, indent=1), encoding="utf-8")


def install() -> list[str]:
    """Install the kernel and the widgets' extension for this user, and copy the notebooks; return what was done.

    No administrator is needed.
    """
    from ipykernel import kernelspec

    # An OnDemand session does not read the shell's settings.
    settings: dict[str, str] = {}
    for name in ("WORKSHOP_HOME", "WORKSHOP_SHARED"):
        value = os.environ.get(name)
        if value:
            settings[name] = value
    settings |= own_packages.for_kernel()
    # Jupyter fills in ${PATH} when it starts the kernel, so `!workshop plan …` works in a cell.
    settings["PATH"] = os.pathsep.join([str(terminal.commands_folder()), "${PATH}"])
    environment, user = data_folders()
    source = environment / MANAGER
    target = user / MANAGER
    if not (source / "package.json").exists():
        problem = f"This environment has no widgets' extension in {source}."
        raise WorkshopError(problem, f"Install ipywidgets: {install_words.setup_command()}")
    with writing(user, "Is there space, and may you write there?"):
        folder = kernelspec.install(user=True, kernel_name=NAME, display_name=TITLE, env=settings)
        _ignore_current_folder(Path(folder, "kernel.json"))
        shutil.copytree(source, target, dirs_exist_ok=True)
    notebooks, _ = learner_copies.copy_notebooks()
    commands = shlex.quote(str(terminal.commands_folder()))
    return [
        f"Kernel {TITLE!r} is in {user / 'kernels' / NAME}.",
        f"Widgets' extension is in {target}.",
        f"Your notebooks are in {notebooks}. Begin with 00_start.ipynb.",
        "Reload JupyterLab, then choose the kernel at the top right.",
        f"In a terminal of that JupyterLab: export PATH={commands}:$PATH",
    ]

"""Start the course's JupyterLab with our packages, and with nobody's configuration.

A person's or a site's Jupyter configuration may set another address, certificates, a password,
another folder or other kernels, any of which keeps the course from opening. Jupyter reads none of
it here (JUPYTER_NO_CONFIG), nor the variables that say the same. What a person has set in
JupyterLab itself (theme, shortcuts) stays.
"""

import os
import sys
from pathlib import Path

from workshop import own_packages, python_process
from workshop.home import private_folder
from workshop.lab import terminal

# defaults: no question about news, all cells rendered
SETTINGS = Path(__file__).parent / "jupyter_settings"
# Of what JupyterLab brings along, what the course needs. Which are enabled is configuration, and so
# not read.
EXTENSIONS = ("jupyter_lsp", "jupyter_server_terminals", "notebook_shim")
PREFIXES = ("JUPYTER_", "JUPYTERLAB_", "JPY_")
KEPT = ("JUPYTER_DATA_DIR", "JUPYTER_PLATFORM_DIRS", "JUPYTER_ALLOW_INSECURE_WRITES")


def command(folder: Path, host: str, port: int, first: str) -> list[str]:
    """Return the command that starts JupyterLab on the folder, at the notebook `first`.

    It holds no token.
    """
    extensions = dict.fromkeys(EXTENSIONS, True)
    lab_extensions = Path(sys.prefix, "share", "jupyter", "labextensions")
    server = {
        "ip": host,
        "port": port,
        "port_retries": 0,
        "root_dir": folder,
        "jpserver_extensions": extensions,
    }
    shell = terminal.shell_command()
    if shell is not None:
        server["terminado_settings"] = {"shell_command": shell}
    lab = {
        "default_url": f"/lab/tree/{first}",
        "app_settings_dir": SETTINGS,
        "labextensions_path": lab_extensions,
        "news_url": None,
        "check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
    }
    result = python_process.command("jupyterlab", "--no-browser")
    result += [f"--ServerApp.{name}={value}" for name, value in server.items()]
    result += [f"--LabApp.{name}={value}" for name, value in lab.items()]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        result.append("--allow-root")
    return result


def environment(token: str) -> dict[str, str]:
    """Return the variables of JupyterLab and of its kernels, which inherit them."""
    base = own_packages.environment_without_foreign_python(dict(os.environ))
    for name in list(base):
        if name.startswith(PREFIXES) and name not in KEPT:
            del base[name]
    base.pop("MPLBACKEND", None)  # a figure is to appear in the notebook
    changes = {
        "PATH": terminal.with_commands(base.get("PATH", os.defpath)),
        terminal.COMMANDS_VARIABLE: str(terminal.commands_folder()),
        "JUPYTER_TOKEN": token,
        "JUPYTER_NO_CONFIG": "1",
        "JUPYTER_PREFER_ENV_PATH": "1",  # this environment's kernel, not one of that name in ~/.local
        "JUPYTER_RUNTIME_DIR": str(private_folder("jupyter", "runtime")),
        "JUPYTERLAB_WORKSPACES_DIR": str(private_folder("jupyter", "workspaces")),
        "JUPYTERLAB_SETTINGS_DIR": str(_lab_settings()),
        "IPYTHONDIR": str(private_folder("jupyter", "ipython")),
    }
    if not _data_folder_can_be_used():
        changes["JUPYTER_DATA_DIR"] = str(private_folder("jupyter", "data"))
    return python_process.environment(changes, base=base)


def _lab_settings() -> Path:
    """Return where this person's JupyterLab keeps its settings."""
    from jupyter_core.paths import jupyter_config_dir

    folder = os.environ.get("JUPYTERLAB_SETTINGS_DIR")
    return Path(folder or Path(jupyter_config_dir(), "lab", "user-settings")).absolute()


def _data_folder_can_be_used() -> bool:
    """Return whether Jupyter may write to its data folder; it does not start where it may not."""
    from jupyter_core.paths import jupyter_data_dir

    folder = Path(jupyter_data_dir())
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)

"""The terminal of the course's JupyterLab: the learner's own shell with our `workshop` command.

A login shell reads /etc/profile and the learner's own files, which may set PATH anew. So the folder
with our commands is put in front of PATH after these files were read, not before.
"""

import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

BASH_FILE = Path(__file__).parent / "terminal.bashrc"
COMMANDS_VARIABLE = "WORKSHOP_COMMANDS"  # the folder of our commands, for terminal.bashrc
POSIX_SHELLS = ("zsh", "sh", "dash", "ksh")


def commands_folder() -> Path:
    """Return the folder with this environment's commands, `workshop` among them."""
    for folder in (Path(sysconfig.get_path("scripts")), Path(sys.executable).parent):
        if shutil.which("workshop", path=str(folder)):
            return folder
    return Path(sys.executable).parent


def with_commands(path: str) -> str:
    """Return a PATH in which this environment's commands come first."""
    first = str(commands_folder())
    others = [folder for folder in path.split(os.pathsep) if folder and folder != first]
    return os.pathsep.join([first, *others])


def shell_command() -> list[str] | None:
    """Return the command of a terminal's shell, or None where Jupyter itself chooses.

    That is so on Windows and for other shells.
    """
    if os.name == "nt":
        return None
    shell = os.environ.get("SHELL") or shutil.which("bash") or shutil.which("sh") or "/bin/sh"
    name = Path(shell).name
    folder = shlex.quote(str(commands_folder()))
    if name == "bash":
        return [shell, "--rcfile", str(BASH_FILE), "-i"]
    if name == "fish":
        return [shell, "-l", "-C", f"set -gx PATH {folder} $PATH"]
    if name in POSIX_SHELLS:
        start = f'PATH={folder}:"$PATH"; export PATH; exec {shlex.quote(shell)} -i'
        return [shell, "-l", "-c", start]
    return None

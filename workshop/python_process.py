"""Start Python so that no process takes code from the current folder.

`python -m MODULE` and `python -c CODE` put the current folder first in sys.path, and so does an empty or relative
entry of PYTHONPATH. A file named json.py there would run in place of the standard library's. Whatever starts Python
takes its command and its environment from here; tests/workshop_modules/test_current_folder.py finds a start that does not.

At the top only what every Python has loaded when it starts is imported: the command line calls
`leave_current_folder` before anything else may be looked for there.
"""

import os
import sys

PYTHON = sys.executable
# The top of the file system: nobody but its administrator puts files there. For a process that is given no path.
NEUTRAL_FOLDER = os.path.abspath(os.sep)
PACKAGE = os.path.dirname(os.path.realpath(__file__))
DISTRIBUTION = "distributed-inference-workshop"
LONGEST_LINE = 300  # of what a process said, in a sentence of ours


def command(module: str, *arguments: str, python: str = PYTHON) -> list[str]:
    """Return the command that runs a module; `python`: another interpreter than this one.

    This interpreter is told by its flag -P. Another one, or the one of a SLURM job, may be older than 3.11 and not
    know it: `environment` tells it, and such a process is best started in NEUTRAL_FOLDER.
    """
    if python == PYTHON and sys.version_info >= (3, 11):
        return [python, "-P", "-m", module, *arguments]
    if os.path.dirname(python):
        python = os.path.abspath(python)  # the process may be started in another folder
    return [python, "-m", module, *arguments]


def environment(
    changes: dict[str, str] | None = None,
    *,
    base: dict[str, str] | None = None,
    python: str = PYTHON,
) -> dict[str, str]:
    """Return an environment for Python in which neither it nor what it starts takes code from the current folder.

    What Python compiles is kept, also where the person's environment says otherwise: vLLM imports thousands of modules,
    and takes three times as long if each start compiles them.

    Args:
        changes: variables to set.
        base: the environment to begin with; by default this process's.
        python: the interpreter that will run; another one than this is told where this package is.
    """
    result = dict(os.environ if base is None else base)
    result.update(changes or {})
    result["PYTHONSAFEPATH"] = "1"
    result.pop("PYTHONDONTWRITEBYTECODE", None)
    if python == PYTHON and not result.get("PYTHONPYCACHEPREFIX"):
        folder = _folder_for_bytecode()
        if folder:
            result["PYTHONPYCACHEPREFIX"] = folder
    folders = whole_paths(result.pop("PYTHONPATH", ""))
    if python != PYTHON or not _is_installed():
        folders = [*_holders(), *folders]
    if folders:
        result["PYTHONPATH"] = os.pathsep.join(folders)
    return result


def whole_paths(search_path: str) -> list[str]:
    """Return the entries of a PYTHONPATH that name one folder, whichever folder a process is in."""
    return [entry for entry in search_path.split(os.pathsep) if os.path.isabs(entry)]


def leave_current_folder() -> None:
    """Take the current folder out of this process's sys.path, where Python put it there by itself.

    That is: for `python -m` and `python -c`, and for the empty and relative entries of PYTHONPATH. A folder that
    PYTHONPATH names by its whole path stays.
    """
    try:
        here = os.getcwd()
    except OSError:  # the folder is gone
        here = ""
    if not getattr(sys.flags, "safe_path", False) and sys.path and sys.path[0] in ("", here):
        del sys.path[0]
    search_path = os.environ.get("PYTHONPATH", "")
    for entry in search_path.split(os.pathsep) if search_path else []:
        folder = os.path.normpath(os.path.join(here, entry))
        if (
            not os.path.isabs(entry)
            and folder not in whole_paths(search_path)
            and folder in sys.path
        ):
            sys.path.remove(folder)


def last_line(error_output: str) -> str:
    """Return the last line of what a process said on standard error ('' if it said nothing).

    Of a traceback that is the error itself; what libraries say after it, while they are torn down, does not count.
    """
    lines = [line.strip() for line in error_output.splitlines() if line.strip()]
    errors = [line for line in lines if _is_error(line)]
    return (errors or lines or [""])[-1][:LONGEST_LINE]


def _is_error(line: str) -> bool:
    """Return True for the last line of a traceback, such as "ModuleNotFoundError: No module named 'torch'"."""
    name = line.partition(":")[0]
    return name.replace(".", "").isidentifier() and name.endswith(
        ("Error", "Exception", "Interrupt")
    )


def _folder_for_bytecode() -> str:
    """Return a folder in $WORKSHOP_HOME for what this Python compiles; '' where that lies beside its packages, or can."""
    from workshop import vllm_package
    from workshop.errors import BadInput
    from workshop.home import home

    if vllm_package.has_bytecode() or vllm_package.can_keep_bytecode():
        return ""
    try:
        folder = home().absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (BadInput, OSError):
        return ""
    return str(folder / "bytecode")


def _holders() -> list[str]:
    """Return the folders in which this package and the planner were found, without repetition.

    By the way they were found: a SLURM job has a folder with links to the packages, and no other file of a checkout.
    """
    import inference_planner

    packages = (os.path.abspath(__file__), os.path.abspath(inference_planner.__file__))
    return list(dict.fromkeys(os.path.dirname(os.path.dirname(file)) for file in packages))


def _is_installed() -> bool:
    """Return True if a fresh process of this Python finds this package without being told where it is."""
    import json
    from importlib.metadata import distributions
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    for distribution in distributions(name=DISTRIBUTION):
        if os.path.realpath(str(distribution.locate_file(os.path.basename(PACKAGE)))) == PACKAGE:
            return True
        try:
            origin = json.loads(distribution.read_text("direct_url.json") or "{}").get("url", "")
        except ValueError:
            continue
        # an editable one
        if os.path.realpath(url2pathname(urlsplit(origin).path)) == os.path.dirname(PACKAGE):
            return True
    return False

"""This environment's packages go before a person's own in ~/.local, and before those of other programs.

Python looks into ~/.local/lib/python3.x/site-packages before a conda environment's own folder, so an old package there
breaks the environment. A venv does not look there at all.

At the top only what every Python has loaded when it starts is imported: the command line calls `environment_first`
before anything else may be looked for there.
"""

import os
import site
import sys

# Variables that change which code a Python runs, or how: set for another Python, they break ours.
FOREIGN_VARIABLES = (
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONUSERBASE",
    "PYTHONSTARTUP",
    "PYTHONOPTIMIZE",
    "PYTHONWARNINGS",
    "PYTHONINSPECT",
    "PYTHONVERBOSE",
    "PYTHONDEBUG",
    "PYTHONCASEOK",
    "PYTHONPLATLIBDIR",
    "PYTHONEXECUTABLE",
    "PYTHONBREAKPOINT",
)
NO_USER_SITE = "PYTHONNOUSERSITE"
NEEDED = ("workshop", "click", "jupyterlab", "ipykernel", "numpy", "pandas", "openai")


def environment_first() -> None:
    """Look for packages in ~/.local last; what this process starts does not look there at all, if it need not."""
    user_site = _user_site()
    if user_site not in sys.path:
        return
    start = sys.path.index(user_site)
    end = start + 1
    own = site.getsitepackages()
    # folders that .pth files of ~/.local name
    while end < len(sys.path) and sys.path[end] not in own:
        end += 1
    moved = sys.path[start:end]
    sys.path[start:end] = []
    sys.path += moved
    if not needs_user_site():
        os.environ[NO_USER_SITE] = "1"


def needs_user_site() -> bool:
    """Return True if a package that the course needs is in ~/.local alone."""
    from importlib.util import find_spec

    base = os.path.join(os.path.realpath(site.getuserbase()), "")
    for name in NEEDED:
        module = find_spec(name)
        if module and module.origin and os.path.realpath(module.origin).startswith(base):
            return site.ENABLE_USER_SITE is True and _user_site() in sys.path
    return False


def environment_without_foreign_python(variables: dict[str, str]) -> dict[str, str]:
    """Return variables for a program of this environment: no other Python's settings, no packages of ~/.local.

    A package folder that PYTHONPATH names is lost as well; `python_process.environment` names ours again where that
    is how it was found.
    """
    result = {name: value for name, value in variables.items() if name not in FOREIGN_VARIABLES}
    if not needs_user_site():
        result[NO_USER_SITE] = "1"
    return result


def forget_foreign_python() -> None:
    """Let everything that this process starts from now on run without another Python's settings and packages."""
    variables = environment_without_foreign_python(dict(os.environ))
    for name in FOREIGN_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(variables)


def for_kernel() -> dict[str, str]:
    """Return the variables that a kernel of another environment's JupyterLab has to be started with.

    A kernel's description cannot unset a variable; Python takes an empty one for none. Where this package is not
    installed, PYTHONPATH says where it is.
    """
    from workshop import python_process

    package_folder = python_process.environment(base={}).get("PYTHONPATH", "")
    result = {"PYTHONHOME": "", "PYTHONPATH": package_folder, "PYTHONDONTWRITEBYTECODE": ""}
    if not needs_user_site():
        result[NO_USER_SITE] = "1"
    return result


def _user_site() -> str:
    """Return the folder of packages in ~/.local ('' if there is none for this Python)."""
    try:
        return site.getusersitepackages()
    except (AttributeError, TypeError):  # no home folder
        return ""

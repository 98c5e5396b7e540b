"""Make .venv with the locked versions: `locks/start.sh [base|local|dev] [-- COMMAND …]`.

Only the standard library, and syntax that an old Python can read: this file must be able to say that it is too old.
Sets: base (light, no torch), local (base and vLLM on the CPU), dev (local and what the tests need). Run again, it
installs nothing. Without a set it takes local, or base where a server is given (WORKSHOP_URL, WORKSHOP_SHARED),
with LOCAL=no, and where vLLM has no CPU wheels. COMMAND is then run as a program of the environment.
locks/start.sh finds a Python for it; `python3 locks/install.py` does the same with that Python.
"""

import os
import sys

if __name__ == "__main__" and not sys.flags.isolated and os.name != "nt":
    # Before anything else is imported: a PYTHONPATH or ~/.local may hold another Python's modules.
    os.execv(sys.executable, [sys.executable, "-I", os.path.abspath(__file__)] + sys.argv[1:])

import errno
import glob
import hashlib
import json
import platform
import shutil
import subprocess
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import environment
import with_uv
from with_uv import DISK_FULL, Failed, explain, say

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OWN_NAME = "workshop-venv"  # our folder inside a WORKSHOP_VENV that holds other things
STAMP_NAME = "workshop-installed.json"  # marks an environment as ours
LOCK_NAME = "workshop-install.lock"
# what a file system without locks answers
NO_LOCKS = errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP
OLDEST = (3, 11)
SETS = ("base", "local", "dev")
# installed, and what is unpacked meanwhile
DISK_NEEDED_GB = {"base": 1.5, "local": 4.0, "dev": 4.5}


def where():
    """Return the environment's folder: WORKSHOP_VENV, or a folder of our own in it where it holds other things."""
    wished = os.environ.get("WORKSHOP_VENV")
    if not wished:
        return os.path.join(ROOT, ".venv")
    wished = os.path.abspath(os.path.expanduser(wished))
    there = set(os.listdir(wished)) if os.path.isdir(wished) else set()
    return (
        os.path.join(wished, OWN_NAME) if there and not there & {STAMP_NAME, LOCK_NAME} else wished
    )


def main(argv):
    """Install what is missing, then run the command; return the exit code."""
    end = argv.index("--") if "--" in argv else len(argv)
    command = argv[end + 1 :]
    use_plain_environment()
    try:
        need_python()
        wanted = argv[0] if end else default_set()
        if wanted not in SETS:
            raise Failed("There is no set %r." % wanted, "Choose one of %s." % ", ".join(SETS))
        venv = where()
        if not is_installed(venv, wanted):
            install(venv, wanted, command)
        return run(venv, command) if command else 0
    except Failed as error:
        say("\n✗ %s\n→ %s" % error.args)
        return 1
    except OSError as error:
        say(
            "\n✗ The environment cannot be made: %s.\n→ Set WORKSHOP_VENV to a folder that you may write to."
            % error
        )
        return 1
    except KeyboardInterrupt:
        say("\n✗ Interrupted.\n→ Run it again: it goes on where it was.")
        return 130


def use_plain_environment():
    """Forget the settings of other Pythons, here and in every program that is started; let every text be printed."""
    plain = environment.without_foreign_python(os.environ)
    for name in set(os.environ) - set(plain):
        del os.environ[name]
    os.environ.update(plain)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # since Python 3.7
            stream.reconfigure(errors="backslashreplace")


def run(venv, command):
    """Go on as a program of the environment, or wait for it where a process cannot be replaced (Windows)."""
    path = os.path.join(os.path.dirname(python_of(venv)), command[0])
    if os.name == "nt":
        return subprocess.call([path] + command[1:])
    os.execv(path, [path] + command[1:])


def need_python():
    """Go on with a Python that is new enough, if there is one."""
    if sys.version_info >= OLDEST:
        return
    for minor in range(14, OLDEST[1] - 1, -1):
        newer = shutil.which("python3.%d" % minor)
        if newer and runs(newer):
            os.execv(newer, [newer, "-I", os.path.abspath(__file__)] + sys.argv[1:])
    raise Failed(
        "This is Python %d.%d; the workshop needs %d.%d or newer."
        % (sys.version_info[:2] + OLDEST),
        "Install one (apt install python3.11 python3.11-venv; conda create -n py python=3.12; module load python) "
        "and run: make workshop PYTHON=python3.12",
    )


def runs(python):
    """Return whether a program is a Python that is new enough. A shim of pyenv may have none behind it."""
    code = "import sys; sys.exit(sys.version_info < %r)" % (OLDEST,)
    return with_uv.call([python, "-I", "-c", code])[0] == 0


def default_set():
    """Say which set this machine and session want, and why it is not the whole one."""
    shared = os.environ.get("WORKSHOP_SHARED")
    if os.environ.get("LOCAL", "").lower() in ("no", "0", "false"):
        return "base"
    if os.environ.get("WORKSHOP_URL") or (
        shared and glob.glob(os.path.join(os.path.expanduser(shared), "*.json"))
    ):
        say("A server is given, so only the light base is installed (no torch, no vLLM).")
        return "base"
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
        say(
            "vLLM has CPU wheels for Linux on x86-64 and aarch64, not for %s on %s. Everything but the local server\n"
            "is installed. For the server: open this folder in a dev container (.devcontainer), in WSL on Windows,\n"
            "or use one elsewhere: set WORKSHOP_URL." % (platform.system(), platform.machine())
        )
        return "base"
    return "local"


def locks_of(wanted):
    """Return the locks of a set, in the order in which they are installed."""
    names = ["base"] if wanted == "base" else ["torch", wanted]
    return [os.path.join(ROOT, "locks", name + ".txt") for name in names]


def fingerprint(wanted):
    """Return what must be equal for an installation to count as done."""
    digest = hashlib.sha256()
    projects = [
        os.path.join(ROOT, "pyproject.toml"),
        os.path.join(ROOT, "planner", "pyproject.toml"),
        os.path.join(ROOT, "locks", "vllm_name", "pyproject.toml"),
    ]
    for path in projects + locks_of(wanted):
        with open(path, "rb") as file:
            digest.update(file.read())
    digest.update(ROOT.encode())
    return digest.hexdigest()


def is_installed(venv, wanted):
    """Return whether the environment holds this set, or a larger one, as it is locked now."""
    try:
        with open(os.path.join(venv, STAMP_NAME)) as file:
            stamp = json.load(file)
        has = stamp["set"]
        whole = SETS.index(has) >= SETS.index(wanted) and stamp["fingerprint"] == fingerprint(has)
        return whole and os.path.exists(python_of(venv))
    except (OSError, ValueError, KeyError):
        return False


def python_of(venv):
    """Return the Python of an environment."""
    return (
        os.path.join(venv, "Scripts", "python.exe")
        if os.name == "nt"
        else os.path.join(venv, "bin", "python")
    )


def install(venv, wanted, command=()):
    """Make the environment and install the set; tell what is done and how long it takes.

    Modules are compiled until the end, or beside the command that comes next: JupyterLab's come first.
    """
    began = time.time()
    need_disk(venv, wanted)
    os.makedirs(venv, exist_ok=True)
    with alone(venv):
        if is_installed(venv, wanted):  # by whoever was first
            return
        say("Setting up %s with the set %r (once)." % (os.path.relpath(venv), wanted))
        make_venv(venv)
        stamp(venv, {})
        compiling = with_uv.install(python_of(venv), locks_of(wanted), ROOT)
        write_paths_in_ascii(venv)
        stamp(venv, {"set": wanted, "fingerprint": fingerprint(wanted)})
    if command:
        say("✓ Installed in %.0f s; modules are compiled meanwhile." % (time.time() - began))
    else:
        say("  compiling the modules …")
        compiling.wait()
        say("✓ Installed in %.0f s." % (time.time() - began))


def write_paths_in_ascii(venv):
    """Let every .pth file be readable in every locale.

    The editable packages name their folder there in UTF-8. Python before 3.13 reads the file in the locale's encoding,
    also in UTF-8 mode, and no program of the environment starts where that is ASCII (LC_ALL=C).
    """
    for packages in ("lib/python3*/site-packages", "Lib/site-packages"):
        for path in glob.glob(os.path.join(glob.escape(venv), packages, "*.pth")):
            with open(path, "rb") as file:
                lines = file.read().splitlines()
            if max(b"".join(lines), default=0) > 127:
                with open(path, "wb") as file:
                    file.writelines(line_in_ascii(line) + b"\n" for line in lines)


def line_in_ascii(line):
    """Return a line of a .pth file that does the same, without a letter outside ASCII."""
    if max(line, default=0) < 128:
        return line
    return b"import os, sys; sys.path.extend({os.fsdecode(%a)} - set(sys.path))" % line


def stamp(venv, facts):
    """Write what is installed in the environment."""
    with open(os.path.join(venv, STAMP_NAME), "w") as file:
        json.dump(facts, file)


class alone:
    """Only one installation at a time works in the environment; others wait for it."""

    def __init__(self, venv):
        self.venv = venv

    def __enter__(self):
        self.file = open(os.path.join(self.venv, LOCK_NAME), "a")
        try:
            import fcntl
        except ImportError:  # Windows
            return
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in NO_LOCKS:
                return
            say(
                "Another installation is at work in %s: waiting for it."
                % os.path.relpath(self.venv)
            )
            fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(self, *error):
        self.file.close()


def need_disk(venv, wanted):
    """Refuse before anything is downloaded if it cannot fit."""
    while not os.path.isdir(venv):
        venv = os.path.dirname(venv)
    free = shutil.disk_usage(venv).free / 1e9
    if free < DISK_NEEDED_GB[wanted]:
        what = "%.1f GB are free in %s; the set %r needs about %.1f GB."
        raise Failed(what % (free, venv, wanted, DISK_NEEDED_GB[wanted]), DISK_FULL)


def make_venv(venv):
    """Create the environment, also over one whose Python has gone. A folder of anything else is left as it is."""
    if (
        os.path.exists(python_of(venv))
        and not with_uv.call(with_uv.pip(python_of(venv)) + ["--version"])[0]
    ):
        return
    there = set(os.listdir(venv)) - {LOCK_NAME}
    if there and not there & {"pyvenv.cfg", STAMP_NAME}:
        raise Failed(
            "%s holds something else than an environment." % venv,
            "Move it away, or set WORKSHOP_VENV.",
        )
    for name in there:
        path = os.path.join(venv, name)
        shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.remove(path)
    status, output = with_uv.call([sys.executable, "-I", "-m", "venv", venv])
    if status:
        explain(output)
        raise Failed(
            "Python %d.%d cannot make a virtual environment here." % sys.version_info[:2],
            "Install its venv module (Debian, Ubuntu: apt install python3-venv), or use a conda Python: "
            "make workshop PYTHON=/path/to/python3",
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Make .venv with the locked versions: `python3 workshop/install.py [base|local|dev]` (`make workshop` runs it first).

Only the standard library, and syntax that an old Python can read: this file must be able to say that it is too old.
Sets: base (light, no torch), local (base and vLLM on the CPU), dev (local and what the tests need). Run again, it
installs nothing. Without a set it takes local, or base where a server is given (WORKSHOP_URL, WORKSHOP_SHARED),
with LOCAL=no, and where vLLM has no CPU wheels.
"""

import glob
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.environ.get("WORKSHOP_VENV") or os.path.join(ROOT, ".venv")
STAMP = os.path.join(VENV, "workshop-installed.json")
LOG = os.path.join(VENV, "install.log")
OLDEST = (3, 11)
SETS = ("base", "local", "dev")
DISK_NEEDED_GB = {"base": 1.5, "local": 4.0, "dev": 4.5}   # installed, and what pip unpacks meanwhile
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
# What pip says -> what it means, and the remedy. The first that is found counts.
FAILURES = (
    (r"No space left|Errno 28|Disk quota exceeded|Errno 122",
     "The disk, or your quota, is full.",
     "Free some space, or set WORKSHOP_VENV to a folder on another disk; LOCAL=no needs 1.5 GB only."),
    (r"DO NOT MATCH THE HASHES",
     "A downloaded package is not the one that was locked.",
     "Try again; if it stays so, your package mirror changes packages: ask whoever runs it."),
    (r"NewConnectionError|name resolution|Name or service not known|Network is unreachable|ProxyError|ReadTimeout"
     r"|ConnectTimeout|Connection refused|Max retries exceeded|Failed to establish",
     "No package index can be reached.",
     "Check the network and pip's proxy settings (HTTPS_PROXY); on a cluster, install on a login node."),
    (r"No matching distribution|Could not find a version",
     "A locked package does not exist for this Python or system.",
     "Use Python 3.11, 3.12 or 3.13; or LOCAL=no for the light base without vLLM."),
)


class Failed(Exception):
    """A step failed: what, and the remedy."""


def say(text):
    """Print at once, also into a pipe."""
    print(text, flush=True)


def main(argv):
    """Install what is missing; return the exit code."""
    try:
        need_python()
        wanted = argv[0] if argv else default_set()
        if wanted not in SETS:
            raise Failed("There is no set %r." % wanted, "Choose one of %s." % ", ".join(SETS))
        if not is_installed(wanted):
            install(wanted)
        return 0
    except Failed as error:
        say("\n✗ %s\n→ %s" % error.args)
        return 1
    except KeyboardInterrupt:
        say("\n✗ Interrupted.\n→ Run it again: it goes on where it was.")
        return 130


def need_python():
    """Go on with a Python that is new enough, if there is one."""
    if sys.version_info >= OLDEST:
        return
    for minor in range(14, OLDEST[1] - 1, -1):
        newer = shutil.which("python3.%d" % minor)
        if newer:
            os.execv(newer, [newer, os.path.abspath(__file__)] + sys.argv[1:])
    raise Failed("This is Python %d.%d; the workshop needs %d.%d or newer." % (sys.version_info[:2] + OLDEST),
                 "Install one (apt install python3.11 python3.11-venv; conda create -n py python=3.12; "
                 "module load python) and run: make workshop PYTHON=python3.12")


def default_set():
    """Say which set this machine and session want, and why it is not the whole one."""
    shared = os.environ.get("WORKSHOP_SHARED")
    if os.environ.get("LOCAL", "").lower() in ("no", "0", "false"):
        return "base"
    if os.environ.get("WORKSHOP_URL") or (shared and glob.glob(os.path.join(os.path.expanduser(shared), "*.json"))):
        say("A server is given, so only the light base is installed (no torch, no vLLM).")
        return "base"
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
        say("vLLM has CPU wheels for Linux on x86-64 and aarch64, not for %s on %s. Everything but the local server\n"
            "is installed. For the server: open this folder in a dev container (.devcontainer), in WSL on Windows,\n"
            "or use one elsewhere: set WORKSHOP_URL." % (platform.system(), platform.machine()))
        return "base"
    return "local"


def fingerprint(wanted):
    """Return what must be equal for an installation to count as done."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", os.path.join("locks", wanted + ".txt")):
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read())
    digest.update(ROOT.encode())
    return digest.hexdigest()


def is_installed(wanted):
    """Return whether .venv holds this set, or a larger one, as it is locked now."""
    try:
        with open(STAMP) as file:
            stamp = json.load(file)
        has = stamp["set"]
        return (SETS.index(has) >= SETS.index(wanted) and stamp["fingerprint"] == fingerprint(has)
                and os.path.exists(venv_python()))
    except (OSError, ValueError, KeyError):
        return False


def venv_python():
    """Return the Python of .venv."""
    return os.path.join(VENV, "Scripts", "python.exe") if os.name == "nt" else os.path.join(VENV, "bin", "python")


def install(wanted):
    """Make .venv and install the set; tell what is done and how long it takes."""
    began = time.time()
    need_disk(wanted)
    say("Setting up %s with the set %r (once)." % (os.path.relpath(VENV), wanted))
    make_venv()
    if wanted != "base":
        install_torch()
    pip("%s packages" % count(wanted), "--no-deps", "--require-hashes", "-r",
        os.path.join(ROOT, "locks", wanted + ".txt"))
    pip("the workshop", "--no-deps", "--no-build-isolation", "-e", ROOT)
    with open(STAMP, "w") as file:
        json.dump({"set": wanted, "fingerprint": fingerprint(wanted)}, file)
    say("✓ Installed in %.0f s." % (time.time() - began))


def need_disk(wanted):
    """Refuse before anything is downloaded if it cannot fit."""
    parent = os.path.dirname(VENV) or "."
    free = shutil.disk_usage(parent if os.path.isdir(parent) else ROOT).free / 1e9
    if free < DISK_NEEDED_GB[wanted]:
        raise Failed("%.1f GB are free in %s; the set %r needs about %.1f GB." % (free, parent, wanted,
                                                                             DISK_NEEDED_GB[wanted]),
                     "Free some space, set WORKSHOP_VENV to a folder on another disk, or use LOCAL=no (1.5 GB).")


def make_venv():
    """Create .venv, also over one whose Python has gone."""
    if os.path.exists(venv_python()) and not subprocess.call(
            [venv_python(), "-m", "pip", "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        return
    done = subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True)
    if done.returncode:
        explain(done.stdout)
        raise Failed("Python %d.%d cannot make a virtual environment here." % sys.version_info[:2],
                     "Install its venv module (Debian, Ubuntu: apt install python3-venv), or use a conda Python: "
                     "make workshop PYTHON=/path/to/python3")


def install_torch():
    """Install the CPU build of torch: from the usual index if it is there, else from PyTorch's own."""
    with open(os.path.join(ROOT, "pyproject.toml")) as file:
        version = re.search(r'"torch==([\d.]+)', file.read()).group(1)
    build = "torch==%s+cpu" % version
    if run_pip("install", "--no-deps", build) == "":
        return
    pip("PyTorch (CPU)", "--no-deps", "--index-url", TORCH_INDEX, build)


def count(wanted):
    """Return the number of locked packages."""
    with open(os.path.join(ROOT, "locks", wanted + ".txt")) as file:
        return len(re.findall(r"^[\w.-]+(?:\[.*\])?==", file.read(), re.MULTILINE))


def pip(what, *args):
    """Run pip install; raise Failed with what it means if it fails."""
    say("  installing %s …" % what)
    output = run_pip("install", *args)
    if output:
        explain(output)
        last = [line for line in output.splitlines() if "ERROR" in line] or output.splitlines()
        raise Failed("pip could not install %s: %s" % (what, last[-1].strip()[:200]), "Its whole output: %s" % LOG)


def run_pip(*args):
    """Return '' if pip did it, else what it printed."""
    command = [venv_python(), "-m", "pip", "--disable-pip-version-check", "--no-input"] + list(args)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    try:
        with open(LOG, "a") as log:
            log.write(done.stdout)
    except OSError:
        pass   # a full disk is told below, from what pip printed
    return (done.stdout or "pip ended with exit code %d" % done.returncode) if done.returncode else ""


def explain(output):
    """Raise Failed with the first meaning that is known."""
    for pattern, what, remedy in FAILURES:
        if re.search(pattern, output, re.IGNORECASE):
            raise Failed(what, remedy)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

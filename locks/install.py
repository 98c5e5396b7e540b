"""Make .venv with the locked versions: `sh locks/start.sh [base|local|dev] [-- COMMAND …]`.

Sets: base (light, no torch), local (base and vLLM on the CPU), dev (local and what the tests need). Run again, it
installs nothing. Without a set it takes local, or base where a server is given (WORKSHOP_URL, WORKSHOP_SHARED),
with LOCAL=no, and where vLLM has no CPU wheels. COMMAND is then run as a program of the environment.

The locked uv comes into the environment like any other package, and installs the rest in seconds. Where it cannot be
had, a uv of the PATH does it, else pip with the same locks, in minutes. Only the standard library.
"""

import contextlib
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(os.path.abspath(__file__)).parents[1]
LOCKS = ROOT / "locks"
sys.path[:0] = [str(LOCKS), str(ROOT)]
import package_sources  # noqa: E402

from workshop import own_packages  # noqa: E402

OWN_NAME = "workshop-venv"  # our folder inside a WORKSHOP_VENV that holds other things
STAMP_NAME = "workshop-installed.txt"  # which set is installed, as a fingerprint
LOCK_NAME = "workshop-install.lock"  # held by an installation; marks the environment as ours
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
# From small to large, with what is needed on the disk: installed, and what is unpacked meanwhile.
DISK_NEEDED_GB = {"base": 1.5, "local": 4.0, "dev": 4.5}
SETS = list(DISK_NEEDED_GB)
# Of what a failed program printed, this is shown.
LAST_LINES = 6
LONGEST_LINE = 200

DISK_FULL = (
    "The disk, or your quota, is full.",
    "Free some space, or set WORKSHOP_VENV to a folder on another disk; LOCAL=no needs 1.5 GB only.",
)
NO_NETWORK = (
    "No package index can be reached.",
    "Check the network, the proxy (HTTPS_PROXY) and UV_OFFLINE; on a cluster, install on a login node.",
)
OTHER_HASH = (
    "A downloaded package is not the one that was locked.",
    "Try again; if it stays so, your package mirror changes packages: ask whoever runs it.",
)
NO_SUCH_PACKAGE = (
    "A locked package does not exist for this Python or system.",
    "Use Python 3.11, 3.12 or 3.13; or LOCAL=no for the light base without vLLM.",
)
# What pip and uv print when they fail, and what it means. The first that fits counts.
MEANINGS = {
    "No space left|quota exceeded": DISK_FULL,
    "do not match the hashes|Hash mismatch": OTHER_HASH,
    "connection broken by|Max retries exceeded|error sending request|timed out|timeout"
    "|network was disabled|connectivity is disabled": NO_NETWORK,
    "No matching distribution|No solution found|has no wheels": NO_SUCH_PACKAGE,
}


class Failed(Exception):
    """A step failed: what happened, and the remedy."""


def say(text: str) -> None:
    """Print at once, also into a pipe."""
    print(text, flush=True)


def main(arguments: list[str]) -> int:
    """Install what is missing, then run the command; return the exit code."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    command = arguments[end + 1 :]
    sys.stdout.reconfigure(errors="backslashreplace")
    own_packages.forget_foreign_python()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        wanted = arguments[0] if end else default_set()
        if wanted not in SETS:
            raise Failed(f"There is no set {wanted!r}.", f"Choose one of {', '.join(SETS)}.")
        venv = folder_of_environment()
        if not is_installed(venv, wanted):
            install(venv, wanted, wait=not command)
        return run(venv, command) if command else 0
    except Failed as error:
        what, remedy = error.args
    except OSError as error:
        what = f"The environment cannot be made: {error}."
        remedy = "Set WORKSHOP_VENV to a folder that you may write to."
    except KeyboardInterrupt:
        what, remedy = "Interrupted.", "Run it again: it goes on where it was."
    say(f"\n✗ {what}\n→ {remedy}")
    return 1


def default_set() -> str:
    """Return the set that this machine and session want, and say why it is not the whole one."""
    shared = os.environ.get("WORKSHOP_SHARED")
    if os.environ.get("LOCAL", "").lower() in ("no", "0", "false"):
        return "base"
    if os.environ.get("WORKSHOP_URL") or (shared and any(Path(shared).expanduser().glob("*.json"))):
        say("A server is given, so only the light base is installed (no torch, no vLLM).")
        return "base"
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
        say(
            "vLLM has CPU wheels for Linux on x86-64 and aarch64, not for "
            f"{platform.system()} on {platform.machine()}. Everything but the local server\n"
            "is installed. For the server: open this folder in a dev container (.devcontainer), in WSL on Windows,\n"
            "or use one elsewhere: set WORKSHOP_URL."
        )
        return "base"
    return "local"


def folder_of_environment() -> Path:
    """Return the environment's folder: WORKSHOP_VENV, or a folder of our own in it where it holds other things."""
    wished = os.environ.get("WORKSHOP_VENV")
    if not wished:
        return ROOT / ".venv"
    folder = Path(os.path.abspath(os.path.expanduser(wished)))
    is_empty = not folder.is_dir() or not any(folder.iterdir())
    return folder if is_empty or (folder / LOCK_NAME).exists() else folder / OWN_NAME


def python_of(venv: Path) -> Path:
    """Return the Python of an environment."""
    return venv / "Scripts" / "python.exe" if os.name == "nt" else venv / "bin" / "python"


def run(venv: Path, command: list[str]) -> int:
    """Go on as a program of the environment, or wait for it where a process cannot be replaced (Windows)."""
    command = [str(python_of(venv).with_name(command[0])), *command[1:]]
    if os.name == "nt":
        return subprocess.call(command)
    os.execv(command[0], command)


def locks_of(wanted: str) -> list[Path]:
    """Return the locks of a set, in the order in which they are installed."""
    names = ["base"] if wanted == "base" else ["torch", wanted]
    return [LOCKS / f"{name}.txt" for name in names]


def fingerprint(wanted: str) -> str:
    """Return what must be equal for an installation of a set to count as done."""
    projects = [
        folder / "pyproject.toml" for folder in (ROOT, ROOT / "planner", LOCKS / "vllm_name")
    ]
    contents = [path.read_bytes() for path in (*projects, *locks_of(wanted))]
    return hashlib.sha256(b"".join([wanted.encode(), os.fsencode(ROOT), *contents])).hexdigest()


def is_installed(venv: Path, wanted: str) -> bool:
    """Return True if the environment holds this set, or a larger one, as it is locked now."""
    try:
        stamp = (venv / STAMP_NAME).read_text()
    except OSError:
        return False
    counts = [fingerprint(name) for name in SETS[SETS.index(wanted) :]]
    return stamp in counts and python_of(venv).exists()


def install(venv: Path, wanted: str, *, wait: bool) -> None:
    """Make the environment and install the set. The modules are compiled beside that, and beside what comes next.

    Args:
        wait: return when all modules are compiled.
    """
    began = time.monotonic()
    need_disk(venv, wanted)
    venv.mkdir(parents=True, exist_ok=True)
    with alone(venv):
        if is_installed(venv, wanted):  # by whoever was first
            return
        say(f"Setting up {venv} with the set {wanted!r} (once, {DISK_NEEDED_GB[wanted]} GB).")
        make_venv(venv)
        (venv / STAMP_NAME).unlink(missing_ok=True)
        compiling = install_packages(python_of(venv), wanted)
        write_paths_in_ascii(venv)
        (venv / STAMP_NAME).write_text(fingerprint(wanted))
    if wait:
        say("  compiling the modules …")
        compiling.wait()
    say(f"✓ Installed in {time.monotonic() - began:.0f} s.")


def need_disk(venv: Path, wanted: str) -> None:
    """Refuse before anything is downloaded if it cannot fit."""
    folder = next(folder for folder in (venv, *venv.parents) if folder.is_dir())
    free = shutil.disk_usage(folder).free / 1e9
    needed = DISK_NEEDED_GB[wanted]
    if free < needed:
        what = f"{free:.1f} GB are free in {folder}; the set {wanted!r} needs about {needed} GB."
        raise Failed(what, DISK_FULL[1])


@contextlib.contextmanager
def alone(venv: Path) -> Iterator[None]:
    """Let one installation at a time work in the environment; others wait for it."""
    with (venv / LOCK_NAME).open("a") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Another installation is at work in {venv}: waiting for it.")
            fcntl.flock(file, fcntl.LOCK_EX)
        except (ImportError, OSError):
            pass  # Windows, or a file system without locks
        yield


def make_venv(venv: Path) -> None:
    """Create the environment, also over a broken one. A folder of anything else is left as it is."""
    if python_of(venv).exists() and not problem([python_of(venv), "-I", "-m", "pip", "--version"]):
        return
    contents = [path for path in venv.iterdir() if path.name != LOCK_NAME]
    if contents and not {"pyvenv.cfg", STAMP_NAME} & {path.name for path in contents}:
        raise Failed(
            f"{venv} holds something else than an environment.",
            "Move it away, or set WORKSHOP_VENV.",
        )
    for path in contents:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    succeed([sys.executable, "-I", "-m", "venv", venv], "The environment")


def install_packages(python: Path, wanted: str) -> subprocess.Popen:
    """Install the locks of a set and the repository's packages; return the process that goes on compiling them."""
    env = package_sources.environment(python)
    locks = locks_of(wanted)
    installer = [*find_installer(python, env), "--no-deps"]
    for lock in locks:
        say(f"  installing {lock.relative_to(ROOT)} …")
        command = [*installer, "--require-hashes", "-r", lock]
        try:
            succeed(command, lock.name, env)
        except Failed:
            if lock.name != "torch.txt":
                raise
            say("  installing PyTorch from its own index …")  # the usual one lacks its CPU build
            succeed([*command, "--index-url", TORCH_INDEX], lock.name, env)
        compiling = start_compiling(python)  # beside the next download
    say("  installing the workshop …")
    ours = ["--editable", ROOT / "planner", "--editable", ROOT]
    if wanted != "base":
        ours.append(LOCKS / "vllm_name")  # vLLM's build for the CPU has another name
    succeed([*installer, "--no-build-isolation", *ours], "The workshop", env)
    shutil.rmtree(python.parents[1] / package_sources.CACHE_NAME, ignore_errors=True)
    return compiling


def find_installer(python: Path, env: dict[str, str]) -> list[str | Path]:
    """Return the command that installs: the locked uv, brought into the environment; else one on the PATH; else pip."""
    pip = [python, "-I", "-m", "pip", "install"]
    output = problem([*pip, "--no-deps", "--require-hashes", "-r", LOCKS / "uv.txt"], env)
    uv = shutil.which("uv") if output else python.with_name("uv")
    if uv:
        return with_uv(uv, python, env)
    cause = meaning(output)
    if cause and cause != NO_SUCH_PACKAGE:
        raise Failed(*cause)
    say("  uv cannot be had from your package index, and none is on the PATH:")
    say("  pip installs instead, which takes some minutes.")
    return pip


def with_uv(uv: str | Path, python: Path, env: dict[str, str]) -> list[str | Path]:
    """Return the command with which uv installs into the environment of this Python."""
    # Which index answers does not matter for what is installed: every package has its locked hash.
    command = [uv, "pip", "install", "--python", python, "--index-strategy", "unsafe-best-match"]
    no_index = env.get("PIP_NO_INDEX", "").lower() in ("1", "true", "yes", "on")  # pip's words
    return [*command, "--no-index"] if no_index else command


def start_compiling(python: Path) -> subprocess.Popen:
    """Compile what is installed by now and imported later, beside whatever is done next."""
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    return subprocess.Popen([python, "-P", LOCKS / "bytecode.py"], start_new_session=True, **quiet)


def problem(command: list[str | Path], env: dict[str, str] | None = None) -> str:
    """Run a command; return what it printed if it failed, else an empty text."""
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        done = subprocess.run(command, env=env, text=True, errors="replace", **options)
    except OSError as error:  # no program, or one that does not run here
        return str(error)
    return done.stdout or f"exit code {done.returncode}" if done.returncode else ""


def meaning(output: str) -> tuple[str, str] | None:
    """Return what a failure means and its remedy, if it is a known one."""
    fitting = (MEANINGS[text] for text in MEANINGS if re.search(text, output, re.IGNORECASE))
    return next(fitting, None)


def succeed(command: list[str | Path], what: str, env: dict[str, str] | None = None) -> None:
    """Run a command; raise Failed with what its failure means, and the last lines that it printed."""
    output = problem(command, env)
    if output:
        unknown = f"{what} could not be installed.", "Ask whoever runs your package index."
        cause, remedy = meaning(output) or unknown
        lines = [f"  {line[:LONGEST_LINE]}" for line in output.splitlines() if line.strip()]
        raise Failed("\n".join([cause, *lines[-LAST_LINES:]]), remedy)


def write_paths_in_ascii(venv: Path) -> None:
    """Let every .pth file be readable in every locale.

    The editable packages name their folder there in UTF-8. Python before 3.13 reads the file in the locale's encoding,
    also in UTF-8 mode, and no program of the environment starts where that is ASCII (LC_ALL=C).
    """
    # Python runs such a line twice.
    in_ascii = b"import os, sys; sys.path.extend({os.fsdecode(%a)} - set(sys.path))"
    files = "lib/python3*/site-packages/*.pth", "Lib/site-packages/*.pth"
    for path in (path for pattern in files for path in venv.glob(pattern)):
        lines = path.read_bytes().splitlines()
        if not all(map(bytes.isascii, lines)):
            lines = [line if line.isascii() else in_ascii % line for line in lines]
            path.write_bytes(b"\n".join(lines) + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Install locks with uv (7 to 30 s where pip takes 160); uv comes into the environment like any other package.

Only the standard library, and syntax that an old Python can read.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import lru_cache

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import environment

TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
LARGE_MIB = 20  # a download of this size is named: where nothing moves for long, that is why
# pip's options, and the variables in which uv reads them: flags would show everybody an index's password.
VARIABLES = {
    "index-url": "UV_INDEX_URL",
    "extra-index-url": "UV_EXTRA_INDEX_URL",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
BETWEEN = {"find-links": ","}  # what uv wants between the values of a list; a blank in the others
TRUE = ("1", "true", "yes", "on")  # pip's words
DISK_FULL = (
    "Free some space, or set WORKSHOP_VENV to a folder on another disk; LOCAL=no needs 1.5 GB only."
)
# What pip and uv say -> what it means, and the remedy. The first that is found counts.
FAILURES = (
    (
        r"No space left|Errno 28|os error 28|quota exceeded|Errno 122|os error 122",
        "The disk, or your quota, is full.",
        DISK_FULL,
    ),
    (
        r"DO NOT MATCH THE HASHES|Hash mismatch",
        "A downloaded package is not the one that was locked.",
        "Try again; if it stays so, your package mirror changes packages: ask whoever runs it.",
    ),
    (
        r"NewConnectionError|name resolution|Name or service not known|Network is unreachable|ProxyError|ReadTimeout"
        r"|ConnectTimeout|Connection refused|Max retries exceeded|Failed to establish|client error \(Connect\)"
        r"|operation timed out|error sending request",
        "No package index can be reached.",
        "Check the network and the proxy settings (HTTPS_PROXY); on a cluster, install on a login node.",
    ),
    (
        r"Network connectivity is disabled|network was disabled",
        "uv is told to stay offline, and does not have all packages.",
        "Unset UV_OFFLINE, or install where the packages are in uv's cache.",
    ),
    (
        r"No matching distribution|Could not find a version|No solution found|has no wheels",
        "A locked package does not exist for this Python or system.",
        "Use Python 3.11, 3.12 or 3.13; or LOCAL=no for the light base without vLLM.",
    ),
)


class Failed(Exception):
    """A step failed: what, and the remedy."""


def say(text):
    """Print at once, also into a pipe."""
    print(text, flush=True)


def install(python, locks, root):
    """Install every lock, and the two packages of the repository at root, into the environment of this Python.

    Return the process that goes on to compile what was installed.
    """
    installer = find(python, locks[-1])
    compiling = None
    for lock in locks:
        args = ["--no-deps", "--require-hashes", "-r", lock]
        if os.path.basename(lock) == "torch.txt":
            install_torch(installer, python, args)
        else:
            with open(lock) as file:
                count = len(re.findall(r"^[\w.-]+(?:\[.*\])?==", file.read(), re.MULTILINE))
            use(installer, python, "%d packages" % count, args)
        compiling = start_compiling(python)  # one after the other passes over what is compiled
    ours = ["--editable", os.path.join(root, "planner"), "--editable", root]
    if os.path.basename(locks[0]) == "torch.txt":  # vLLM's build for the CPU comes along
        ours.append(os.path.join(root, "locks", "vllm_name"))
    use(installer, python, "the workshop", ["--no-deps", "--no-build-isolation"] + ours)
    return compiling


def start_compiling(python):
    """Compile what is installed by now and imported later, beside whatever is done next."""
    command = [
        python,
        "-P",
        os.path.join(os.path.dirname(os.path.abspath(__file__)), "bytecode.py"),
    ]
    log = os.path.join(os.path.dirname(os.path.dirname(python)), "install.log")
    with open(log, "a") as output:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )


def install_torch(installer, python, args):
    """Install PyTorch's CPU build: from the usual index if it is there, else from PyTorch's own."""
    try:
        use(installer, python, "PyTorch (CPU)", args)
    except Failed:
        use(installer, python, "PyTorch (CPU) from its own index", args, index=TORCH_INDEX)


def find(python, lock):
    """Return the command that installs: the locked uv, brought into the environment; else one on the PATH; else pip."""
    with open(lock) as file:
        pinned = re.search(r"^uv==.*(?:\n .*)*\n", file.read(), re.MULTILINE).group(0)
    folder = os.path.dirname(os.path.dirname(python))
    listed = os.path.join(folder, "uv.txt")
    with open(listed, "w") as file:
        file.write(pinned)
    command = pip(python) + ["install", "--no-deps", "--require-hashes", "-r", listed]
    status, output = call(command, folder, pip_environment(python))
    uv = shutil.which("uv") if status else os.path.join(os.path.dirname(python), "uv")
    if uv:
        return [uv, "pip", "install", "--python", python, "--index-strategy", "unsafe-best-match"]
    explain(re.sub("No matching distribution|Could not find a version", "", output))
    say("  uv cannot be had from your package index (%s).\n" % last_words(output))
    say(
        "  pip installs instead, which takes some minutes; with a uv on the PATH it takes half of one."
    )
    return pip(python) + ["install"]


def pip(python):
    """Return the command of the environment's pip, whatever lies in the current folder and in ~/.local."""
    return [python, "-I", "-m", "pip", "--disable-pip-version-check", "--no-input"]


def use(installer, python, what, args, index=None):
    """Install something; raise Failed with what a failure means."""
    say("  installing %s …" % what)
    folder = os.path.dirname(os.path.dirname(python))
    cache = os.path.join(folder, "uv-cache")
    flags, env = [], pip_environment(python)
    if "--python" in installer:
        flags, env = settings(python, cache)
    if index:
        flags += ["--index-url", index]
    status, output = call(installer + flags + args, folder, env, show_download)
    shutil.rmtree(cache, ignore_errors=True)
    if status:
        explain(output)
        log = os.path.join(folder, "install.log")
        raise Failed(
            "%s could not be installed: %s" % (what, last_words(output)),
            "The whole output: %s" % log,
        )


@lru_cache(maxsize=None)
def pip_options(python):
    """Return where pip is told to look for packages, by option: asked once, as pip takes half a second to say it."""
    status, output = call(
        pip(python) + ["config", "list"], env=environment.for_asking_pip(os.environ)
    )
    if status:
        say("  pip's configuration cannot be read, so it is passed over: %s" % last_words(output))
        return {}
    return environment.pip_sources(output)


def pip_environment(python):
    """Return the variables for pip: where packages come from, and nothing else that is configured."""
    return environment.for_pip(os.environ, pip_options(python))


def settings(python, cache):
    """Return uv's flags and environment for what pip is told here: uv reads none of pip's configuration.

    Which index answers does not matter for what is installed: every package has its locked hash. A cache in the home
    folder is left alone where the environment is on another disk: uv cannot link from there, so it would only fill it.
    """
    options = pip_options(python)
    env = environment.for_uv(os.environ)
    flags = []
    if options.get("no-index", [""])[-1].lower() in TRUE:
        flags.append("--no-index")
    for option, variable in VARIABLES.items():
        if option in options:
            env.setdefault(variable, BETWEEN.get(option, " ").join(options[option]))
    wished = env.get("UV_CACHE_DIR")
    if wished and not may_write_below(wished):
        env["UV_CACHE_DIR"] = cache
    elif not wished:
        home = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~")
        elsewhere = (
            os.path.isdir(home) and os.stat(home).st_dev != os.stat(os.path.dirname(cache)).st_dev
        )
        if elsewhere or not may_write_below(home):
            env["UV_CACHE_DIR"] = cache
    return flags, env


def may_write_below(folder):
    """Return whether a folder is there, or can be made, and can be written to."""
    while not os.path.lexists(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)


def call(command, folder=None, env=None, report=None):
    """Run a command; return its exit code and what it printed. report gets every line; the folder's log keeps all."""
    pipes = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "universal_newlines": True,
        "errors": "replace",
    }
    try:
        process = subprocess.Popen(command, env=env, **pipes)
    except OSError as error:  # no program, or none that runs here
        return 127, str(error)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if report:
            report(line)
    status = process.wait()
    output = "".join(lines) or ("exit code %d" % status if status else "")
    try:
        if folder:
            with open(os.path.join(folder, "install.log"), "a") as log:
                log.write("$ %s\n%s" % (" ".join(map(shlex.quote, command)), output))
    except OSError:
        pass  # a full disk is told from what the command printed
    return status, output


def show_download(line):
    """Name a large download."""
    found = re.match(r"Downloading (\S+) \(([\d.]+)(MiB|GiB)\)", line)
    if found and (found.group(3) == "GiB" or float(found.group(2)) >= LARGE_MIB):
        say("    %s: %s %s" % found.groups())


def last_words(output):
    """Return the line of an output that says what was wrong."""
    lines = [line.strip(" ×╰─▶│") for line in output.splitlines() if line.strip(" ×╰─▶│")]
    wrong = [line for line in lines if re.search("error", line, re.IGNORECASE)]
    return (wrong or lines or ["no word"])[-1][:200]


def explain(output):
    """Raise Failed with the first meaning that is known."""
    for pattern, what, remedy in FAILURES:
        if re.search(pattern, output, re.IGNORECASE):
            raise Failed(what, remedy)

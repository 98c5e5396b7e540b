"""Take from a person's settings where packages come from, and never where they go.

pip and uv read many variables and files. `PIP_USER=1` or a `target` in pip.conf would send the packages elsewhere;
`no-binary` or `exclude-newer` would change them. So both get a new environment, without any configuration file.
uv reads nothing that pip is told: it gets the same index, certificates and proxy in variables of its own. Flags would
show an index's password in the list of processes.
"""

import ast
import contextlib
import os
import re
import subprocess
import tomllib
from pathlib import Path

CACHE_NAME = "uv-cache"
# pip's options that say where packages come from, and uv's variable for the same
PIP_OPTIONS = {
    "index-url": "UV_INDEX_URL",
    "extra-index-url": "UV_EXTRA_INDEX_URL",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "no-index": None,
    "retries": None,
    "cache-dir": None,
    "no-cache-dir": None,
    "keyring-provider": None,
}
UV_VARIABLES = re.compile(
    "UV_(INDEX|DEFAULT_INDEX|EXTRA_INDEX_URL|FIND_LINKS|INSECURE_HOST|KEYRING_PROVIDER|NATIVE_TLS|SYSTEM_CERTS"
    "|OFFLINE|CACHE_DIR|NO_CACHE|LINK_MODE|HTTP_|REQUEST_|CONCURRENT_)"
)


def environment(python: Path) -> dict[str, str]:
    """Return the environment for pip and uv, which install into the environment of this Python."""
    env = {name: os.environ[name] for name in os.environ if not name.startswith(("PIP_", "UV_"))}
    env |= {name: os.environ[name] for name in os.environ if UV_VARIABLES.match(name)}
    for name, value in from_uv_toml().items():
        env.setdefault(name, value)
    for option, values in from_pip(python).items():
        env[pip_variable(option)] = " ".join(values)
        if uv_variable := PIP_OPTIONS[option]:
            env.setdefault(uv_variable, joined(uv_variable, values))
    if not has_usable_cache(env.get("UV_CACHE_DIR"), python.parents[1]):
        env["UV_CACHE_DIR"] = str(python.parents[1] / CACHE_NAME)
    return env | {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "UV_NO_CONFIG": "1",
    }


def pip_variable(option: str) -> str:
    """Return the variable in which pip reads an option."""
    return "PIP_" + option.upper().replace("-", "_")


def from_pip(python: Path) -> dict[str, list[str]]:
    """Return the values of each option of PIP_OPTIONS that pip is told here, in a variable or a file."""
    # PIP_QUIET would silence it, and PIP_PYTHON would ask another Python's pip.
    asked = {"PIP_CONFIG_FILE", *map(pip_variable, PIP_OPTIONS)}
    env = {name: os.environ[name] for name in os.environ if name[:4] != "PIP_" or name in asked}
    command = [python, "-I", "-m", "pip", "config", "list"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, errors="replace")
    if done.returncode:
        print(f"  pip's configuration cannot be read, so it is passed over: {done.stderr.strip()}")
    return pip_options(done.stdout)


def pip_options(listing: str) -> dict[str, list[str]]:
    """Return the values of each option of PIP_OPTIONS, from what `pip config list` prints.

    A line is `global.find-links='/a /b'` or `:env:.cert='/c'`. As for pip, `install` wins over `global`, and a variable
    over both.
    """
    options = {}
    for section in ("global", "install", ":env:"):
        for option, value in re.findall(rf"^{section}\.([\w-]+)=(.+)$", listing, re.MULTILINE):
            if option in PIP_OPTIONS:
                options[option] = ast.literal_eval(value).split()
    return options


def from_uv_toml() -> dict[str, str]:
    """Return uv's variables for what uv.toml says of where packages come from: the person's before the system's."""
    if os.environ.get("UV_NO_CONFIG", "").lower() in ("1", "true"):
        return {}
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    own = os.environ.get("UV_CONFIG_FILE")
    settings = {}
    for path in [own] if own else ["/etc/uv/uv.toml", f"{home}/uv/uv.toml"]:
        with contextlib.suppress(OSError, ValueError):
            file = tomllib.loads(Path(path).read_text(encoding="utf-8"))
            settings |= file.pop("pip", {}) | file
    indexes = settings.pop("index", [])
    settings["default-index"] = [index["url"] for index in indexes if index.get("default")]
    settings["index"] = [index["url"] for index in indexes if not index.get("default")]
    variables = {}
    for key, value in settings.items():
        variable = "UV_" + key.removeprefix("allow-").upper().replace("-", "_")
        if value and UV_VARIABLES.match(variable):
            values = value if isinstance(value, list) else [value]
            variables[variable] = joined(variable, values)
    return variables


def joined(uv_variable: str, values: list) -> str:
    """Return a list as uv reads it in a variable."""
    return ("," if uv_variable == "UV_FIND_LINKS" else " ").join(map(str, values))


def has_usable_cache(wished: str | None, venv: Path) -> bool:
    """Return True if uv can keep its cache where it is wished, or else in the person's home folder.

    One in the home folder is left alone where the environment is on another disk: uv cannot link from there, so it
    would only fill it.
    """
    folder = wished or os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.path.abspath(folder)
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    may_write = os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)
    return may_write and bool(wished or os.stat(folder).st_dev == os.stat(venv).st_dev)

"""What an installation may see of a person's settings: where packages come from, and never where they go.

pip, uv and Python read many variables and files. `PIP_USER=1`, a `target` in pip.conf or a PYTHONPATH would send the
packages elsewhere, or bring another program's packages in front of ours.

Only the standard library, and syntax that an old Python can read.
"""

import os

# Variables that change which code a Python runs, or how. One that is set for another Python breaks ours.
PYTHON_VARIABLES = (
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONUSERBASE",
    "PYTHONSTARTUP",
    "PYTHONOPTIMIZE",
    "PYTHONWARNINGS",
    "PYTHONINSPECT",
    "PYTHONVERBOSE",
    "PYTHONDEBUG",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONCASEOK",
    "PYTHONPLATLIBDIR",
    "PYTHONEXECUTABLE",
    "PYTHONBREAKPOINT",
    "__PYVENV_LAUNCHER__",
)

# pip's options that say where packages come from. pip reads each in a variable, such as PIP_INDEX_URL.
PIP_SOURCES = (
    "index-url",
    "extra-index-url",
    "find-links",
    "no-index",
    "trusted-host",
    "cert",
    "client-cert",
    "proxy",
    "timeout",
    "default-timeout",
    "retries",
    "cache-dir",
    "no-cache-dir",
    "keyring-provider",
)
# All values of these options count; of the others the one that pip itself would take.
PIP_LISTS = ("extra-index-url", "find-links", "trusted-host")
# Which of pip's sections wins: a variable, then what is said of `pip install`, then what holds for all commands.
PIP_SECTIONS = ("global", "install", ":env:")

# uv's variables that say where packages come from, and how they are fetched and linked.
UV_SOURCES = (
    "UV_INDEX",
    "UV_DEFAULT_INDEX",
    "UV_INDEX_URL",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_INSECURE_HOST",
    "UV_KEYRING_PROVIDER",
    "UV_NATIVE_TLS",
    "UV_SYSTEM_CERTS",
    "UV_OFFLINE",
    "UV_CACHE_DIR",
    "UV_NO_CACHE",
    "UV_LINK_MODE",
)
# What of uv.toml says the same, and what is between the values of a list.
UV_FILE_SOURCES = {
    "index-url": ("UV_INDEX_URL", " "),
    "extra-index-url": ("UV_EXTRA_INDEX_URL", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "allow-insecure-host": ("UV_INSECURE_HOST", " "),
    "keyring-provider": ("UV_KEYRING_PROVIDER", " "),
    "native-tls": ("UV_NATIVE_TLS", " "),
    "cache-dir": ("UV_CACHE_DIR", " "),
    "link-mode": ("UV_LINK_MODE", " "),
}
# UV_INDEX_NAME_PASSWORD, …
UV_SOURCE_PREFIXES = "UV_INDEX_", "UV_HTTP_", "UV_REQUEST_", "UV_CONCURRENT_"


def without_foreign_python(variables):
    """Return variables for a program of ours: no other Python's settings, and no packages of ~/.local."""
    kept = {name: value for name, value in variables.items() if name not in PYTHON_VARIABLES}
    kept["PYTHONNOUSERSITE"] = "1"
    return kept


def for_asking_pip(variables):
    """Return variables with which `pip config list` says what the person has configured.

    PIP_QUIET would silence it, and PIP_PYTHON would ask another Python's pip.
    """
    allowed = [variable_of(option) for option in PIP_SOURCES] + ["PIP_CONFIG_FILE"]
    return {
        name: value
        for name, value in variables.items()
        if not name.startswith("PIP_") or name in allowed
    }


def for_pip(variables, options):
    """Return variables with which pip reads these options (values by option), and no other of the person's."""
    kept = {name: value for name, value in variables.items() if not name.startswith("PIP_")}
    kept["PIP_CONFIG_FILE"] = os.devnull
    for option, values in options.items():
        kept[variable_of(option)] = " ".join(values)
    return kept


def for_uv(variables):
    """Return variables with which uv reads where packages come from, and no other setting of the person's."""
    kept = {}
    for name, value in variables.items():
        if name in UV_SOURCES or name.startswith(UV_SOURCE_PREFIXES) or not name.startswith("UV_"):
            kept[name] = value
    if variables.get("UV_NO_CONFIG", "").lower() not in ("1", "true"):
        for name, value in uv_file_sources(variables).items():
            kept.setdefault(name, value)
    kept["UV_NO_CONFIG"] = "1"  # uv.toml may say `target`, `system` or `exclude-newer` as well
    return kept


def uv_files(variables):
    """Return where uv's configuration may be, the one that wins first."""
    if variables.get("UV_CONFIG_FILE"):
        return [variables["UV_CONFIG_FILE"]]
    own = variables.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return [os.path.join(own, "uv", "uv.toml"), "/etc/uv/uv.toml"]


def uv_file_sources(variables):
    """Return uv's variables for what uv.toml says of where packages come from; {} where it says nothing."""
    try:
        import tomllib
    except ImportError:  # a Python that is too old
        return {}
    found = {}
    for path in uv_files(variables):
        try:
            with open(path, "rb") as file:
                settings = tomllib.load(file)
        except (OSError, ValueError):
            continue
        for table in (settings, settings.get("pip")):
            for name, value in sources_in(table).items():
                found.setdefault(name, value)
    return found


def sources_in(table):
    """Return uv's variables for one table of uv.toml."""
    found = {}
    if not isinstance(table, dict):
        return found
    for key, (variable, between) in UV_FILE_SOURCES.items():
        value = table.get(key)
        if isinstance(value, list):
            found[variable] = between.join(str(item) for item in value)
        elif value is not None:
            found[variable] = str(value).lower() if isinstance(value, bool) else str(value)
    indexes = table.get("index")
    named = []
    for index in indexes if isinstance(indexes, list) else []:
        if not isinstance(index, dict) or "url" not in index:
            continue
        if index.get("default"):
            found["UV_DEFAULT_INDEX"] = str(index["url"])
        else:
            named.append(str(index["url"]))
    if named:
        found["UV_INDEX"] = " ".join(named)
    return found


def variable_of(option):
    """Return the variable in which pip reads an option."""
    return "PIP_" + option.upper().replace("-", "_")


def pip_sources(listing):
    """Return the values of each source option, from what `pip config list` prints.

    A line is `global.find-links='/a /b'` or `:env:.cert='/c'`; a value over several lines has `\\n` in it.
    """
    found = {}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.rpartition(".")
        if section in PIP_SECTIONS and option in PIP_SOURCES:
            words = value.strip("'\"").replace("\\n", " ").split()
            found.setdefault(option, []).append((PIP_SECTIONS.index(section), words))
    return {option: counted(option, values) for option, values in found.items()}


def counted(option, values):
    """Return the words of an option that count, out of (place of the section, words)."""
    ordered = [words for _, words in sorted(values, key=lambda value: value[0])]
    if option not in PIP_LISTS:
        return ordered[-1][-1:]
    every = [word for words in ordered for word in words]
    return list(dict.fromkeys(every))

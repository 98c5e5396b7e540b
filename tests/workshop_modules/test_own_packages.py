"""Packages of ~/.local come after this environment's, and only where the environment lacks something."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from pathlib import Path

import pytest

from workshop import own_packages

# A Python that is no venv, such as conda's: it looks into ~/.local first.
AS_IN_CONDA = """
import site, sys
site.ENABLE_USER_SITE = True
user, own = site.getusersitepackages(), {own!r}
site.getsitepackages = lambda: [own]
sys.path = [folder for folder in sys.path if folder not in (user, own)]
sys.path[-1:] = [*sys.path[-1:], user, {editable!r}, own]
sys.path.append({package!r})
from workshop import own_packages
own_packages.environment_first()
import os, click
print(click.__file__, os.environ.get("PYTHONNOUSERSITE"), sys.path[-2:] == [user, {editable!r}])
"""


@pytest.fixture
def user_site(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path / "local"))
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    folder = tmp_path / "local" / "lib" / version / "site-packages"
    folder.mkdir(parents=True)
    return folder


def as_in_conda(tmp_path: Path) -> str:
    import click

    places = {
        "own": str(Path(click.__file__).parents[1]),
        "editable": str(tmp_path / "editable"),
        "package": str(Path(own_packages.__file__).parents[1]),
    }
    env = {name: value for name, value in os.environ.items() if name != "PYTHONNOUSERSITE"}
    command = [sys.executable, "-c", AS_IN_CONDA.format(**places)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=tmp_path)
    return done.stdout.strip() or done.stderr


def test_an_old_package_in_the_home_folder_does_not_go_before_the_environments(user_site, tmp_path):
    for place in (user_site, tmp_path / "editable"):
        place.mkdir(exist_ok=True)
        for name in ("click", "numpy", "jupyter_server"):
            (place / f"{name}.py").write_text("raise ImportError('an old one')")
    output = as_in_conda(tmp_path)
    assert output.endswith("1 True") and str(user_site) not in output


def test_what_the_environment_lacks_still_comes_from_the_home_folder(user_site, monkeypatch):
    """`pip install --user` put the course there: then it must go on being found."""
    (user_site / "only_at_home.py").write_text("")
    monkeypatch.setattr(own_packages, "NEEDED", ("click", "only_at_home"))
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    monkeypatch.setattr(site, "getusersitepackages", lambda: str(user_site))
    monkeypatch.setattr(site, "getuserbase", lambda: str(user_site.parents[2]))
    monkeypatch.setattr(sys, "path", [*sys.path, str(user_site)])
    assert own_packages.needs_user_site()
    assert own_packages.NO_USER_SITE not in own_packages.environment_without_foreign_python(
        {"HOME": "/h"}
    )
    assert own_packages.NO_USER_SITE not in own_packages.for_kernel()
    monkeypatch.setattr(own_packages, "NEEDED", ("click",))
    env = own_packages.environment_without_foreign_python({"HOME": "/h", "PYTHONPATH": "/x"})
    assert env == {"HOME": "/h", "PYTHONNOUSERSITE": "1"}

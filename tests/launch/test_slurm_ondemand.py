"""The Batch Connect app, rendered as OnDemand renders it: valid, clean, and a JupyterLab that its page logs into."""

from __future__ import annotations

import http.cookiejar
import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import ondemand_app
import pytest
from needs import shellcheck
from ondemand_app import render


@pytest.mark.parametrize("name", ["manifest.yml", "form.yml.erb", "submit.yml.erb"])
def test_yaml_is_valid_and_the_defaults_are_what_the_course_needs(name):
    yaml = pytest.importorskip("yaml")
    data = yaml.safe_load(render(name, ENV="", num_cores="1", memory_gb="4"))
    if name.startswith("form"):
        assert set(data["form"]) == set(data["attributes"])
        assert (data["attributes"]["num_cores"]["value"], data["attributes"]["memory_gb"]["value"]) == (1, 4)
    if name.startswith("submit"):
        assert data["script"]["native"] == ["--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--mem=4G"]
        assert "gpu" not in json.dumps(data)


@pytest.mark.parametrize("name", ["before.sh.erb", "script.sh.erb"])
def test_templates_are_clean(name):
    text = render(f"template/{name}", course="/shared/course", class_folder="/shared/class")
    done = subprocess.run([shellcheck(), "--exclude=SC2154", "-"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout  # SC2154: host is Batch Connect's


@pytest.mark.starts
def test_button_opens_the_learners_own_copy_of_the_notebooks(tmp_path):
    with ondemand_app.session(tmp_path) as session:
        answer = press(session.page, f"http://127.0.0.1:{session.port}", session.log)
        names = {entry["name"] for entry in answer["content"]}
        assert "00_start.ipynb" in names and (session.home / "workshop-notebooks/00_start.ipynb").exists()
        assert (session.folder / "jupyter_server_config.json").stat().st_mode & 0o777 == 0o600
        assert ondemand_app.PASSWORD not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout


def press(page: str, address: str, log: Path) -> dict:
    """Do what the page's button does, then list the folder with the session's cookies."""
    target = re.search(r'action="([^"]+)"', page)[1]
    fields = dict(re.findall(r'name="(\w+)" value="([^"]+)"', page))
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
    deadline = time.monotonic() + 90
    while True:
        try:
            opener.open(address + target, urllib.parse.urlencode(fields).encode(), timeout=10)
            return json.load(opener.open(address + target.removesuffix("login") + "api/contents", timeout=10))
        except OSError:
            if time.monotonic() > deadline:
                raise AssertionError(log.read_text()[-3000:]) from None
            time.sleep(0.5)

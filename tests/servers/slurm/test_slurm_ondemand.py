"""The Batch Connect app, rendered as OnDemand renders it: valid, clean, and a JupyterLab that its page logs into."""

from __future__ import annotations

import html.parser
import http.cookiejar
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import ondemand_app
import pytest
from needs import shellcheck
from ondemand_app import render


def test_yaml_is_valid_and_the_defaults_are_what_the_course_needs(subtests):
    for name in ["manifest.yml", "form.yml.erb", "submit.yml.erb"]:
        with subtests.test(name):
            yaml = pytest.importorskip("yaml")
            data = yaml.safe_load(render(name, ENV="", num_cores="1", memory_gb="4"))
            if name.startswith("form"):
                assert set(data["form"]) == set(data["attributes"])
                assert (
                    data["attributes"]["num_cores"]["value"],
                    data["attributes"]["memory_gb"]["value"],
                ) == (1, 4)
            if name.startswith("submit"):
                assert data["script"]["native"] == [
                    "--nodes=1",
                    "--ntasks=1",
                    "--cpus-per-task=1",
                    "--mem=4G",
                ]
                assert "gpu" not in json.dumps(data)


def test_templates_are_clean(subtests):
    for name in ["before.sh.erb", "script.sh.erb"]:
        with subtests.test(name):
            text = render(f"template/{name}", course="/shared/course", class_folder="/shared/class")
            done = subprocess.run(
                [shellcheck(), "--exclude=SC2154", "-"], input=text, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stdout  # SC2154: host is Batch Connect's


# Folders' names with something in it that a shell, ERB, Ruby or YAML would act on.
HOSTILE = (
    "/shared/$(touch {planted})",
    "/shared/`touch {planted}`",
    '/shared/x"; touch {planted}; "',
    "/shared/it's; touch {planted}",
    "/shared/$class/${{HOME}}",
    "/shared/one\ntouch {planted}\n",
    "/shared/one\rtouch {planted}",
    "/shared/a\\b\\",
    "/shared/*/{{a,b}}/[x]?~ !! #x",
    "/shared/<%= `touch {planted}` %>",
    "/shared/#{{`touch {planted}`}}",
    "/shared/naïve Klasse 日本",
)


def shell(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess:
    """Run a script by bash in a folder of its own."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "host": "node1",
        "port": "8888",
        **variables,
    }
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, timeout=60
    )


def python_that_shows(folder: Path, *variables: str) -> str:
    """Make a course whose Python writes the variables into files; return the course's path."""
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    shown = "\n".join(f'printf %s "${name}" > "$HOME/{name}"' for name in variables)
    python.write_text(
        f'#!/bin/bash\ncat > /dev/null < /dev/null\nmkdir -p "$HOME/workshop-notebooks"\n{shown}\n'
    )
    python.chmod(0o755)
    return str(folder)


@pytest.fixture
def course(tmp_path) -> str:
    """A course whose Python shows the class's folder."""
    return python_that_shows(tmp_path / "course", "WORKSHOP_SHARED")


def test_a_folder_of_any_name_arrives_as_it_was_written(course, tmp_path, subtests):
    """That of the class, that of the course, and the one that the dashboard knows."""
    yaml = pytest.importorskip("yaml")
    planted = tmp_path / "planted"
    commands = "find_port() { echo 8888; }; create_passwd() { echo secret; }\n"
    for template in HOSTILE:
        written = template.format(planted=planted)
        with subtests.test(written):
            script = render("template/script.sh.erb", course=course, class_folder=written)
            done = shell(script, tmp_path)
            assert done.returncode == 0, done.stderr
            assert (tmp_path / "WORKSHOP_SHARED").read_bytes().decode() == written.strip()
            own = python_that_shows(tmp_path / written.strip("/ \n"), "WORKSHOP_SLURM")
            for name in ("before.sh.erb", "script.sh.erb"):
                script = commands + render(f"template/{name}", course=own, class_folder="")
                done = shell(script, tmp_path)
                assert done.returncode == 0, done.stderr
            assert (tmp_path / "WORKSHOP_SLURM").read_bytes().decode() == f"{own}/slurm"
            data = yaml.safe_load(render("form.yml.erb", ENV=written))
            assert data["attributes"]["class_folder"]["value"] == written
            assert set(data["form"]) == set(data["attributes"])
            assert not planted.exists()


def test_only_an_absolute_path_is_taken(course, tmp_path, subtests):
    for value in ["class", "../class", "~/class", "$HOME/class", "-P /class", "class\n/x"]:
        with subtests.test(value):
            done = shell(
                render("template/script.sh.erb", course=course, class_folder=value), tmp_path
            )
            assert (
                done.returncode == 1
                and b"The folder of your class must be an absolute path" in done.stderr
            )
            assert len(done.stderr.splitlines()) == 1
            for name in ("before.sh.erb", "script.sh.erb"):
                done = shell(render(f"template/{name}", course=value, class_folder=""), tmp_path)
                assert done.returncode == 1 and b"absolute path" in done.stderr


def test_a_null_byte_which_bash_would_drop_is_refused_in_the_form(subtests):
    """OnDemand shows what a template raises, and submits nothing."""
    for name, field in [
        ("before.sh.erb", "course"),
        ("script.sh.erb", "course"),
        ("script.sh.erb", "class_folder"),
    ]:
        with subtests.test(name):
            values = {"course": "/shared/course", "class_folder": "", field: "/shared/a\0b"}
            with pytest.raises(AssertionError, match=r"holds? a NUL"):
                render(f"template/{name}", **values)


def test_no_class_folder_leaves_the_variable_alone(course, tmp_path, subtests):
    for value in ["", "  ", None]:
        with subtests.test(value):
            script = render("template/script.sh.erb", course=course, class_folder=value)
            assert shell(script, tmp_path, WORKSHOP_SHARED="/site").returncode == 0
            assert (tmp_path / "WORKSHOP_SHARED").read_text() == "/site"


def test_numbers_of_the_form_are_numbers_within_their_limits(subtests):
    for written, cores, memory in [
        ("2; touch planted", 2, 4),
        ("$(touch planted)", 1, 4),
        ("1\n    - --wrap=touch planted", 1, 4),
        ('3"\n    - "--gpus=8', 3, 4),
        ("99999999999999999999", 4, 16),
        ("-1", 1, 4),
        ("", 1, 4),
        (None, 1, 4),
    ]:
        with subtests.test(written):
            yaml = pytest.importorskip("yaml")
            data = yaml.safe_load(render("submit.yml.erb", num_cores=written, memory_gb=written))
            wanted = ["--nodes=1", "--ntasks=1", f"--cpus-per-task={cores}", f"--mem={memory}G"]
            assert data == {"batch_connect": {"template": "basic"}, "script": {"native": wanted}}


def test_the_page_holds_its_values_as_text(subtests):
    for value in ['"><script>alert(1)</script>', "a&b", "it's", "a b/../c", "100%", "日本"]:
        with subtests.test(value):
            page = render("view.html.erb", host=value, port=value, password=value)
            reader = Reader(page)
            assert reader.tags == ["form", "input", "input", "button"]
            assert reader.fields["password"] == value
            encoded = urllib.parse.quote(value, safe="")
            assert reader.action == f"/node/{encoded}/{encoded}/login"
            assert reader.fields["next"] == f"/node/{encoded}/{encoded}/lab/tree/00_start.ipynb"


class Reader(html.parser.HTMLParser):
    """The tags of a page, its form's address, and the values of its fields, as a browser would read them."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[str] = []
        self.fields: dict[str, str] = {}
        self.action = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append(tag)
        if tag == "form":
            self.action = attributes["action"] or ""
        if tag == "input":
            self.fields[attributes["name"] or ""] = attributes["value"] or ""


def test_pythons_of_the_session_take_no_module_from_where_they_start(tmp_path):
    """Each is a real Python in a folder with a json.py and a jupyter_server of somebody else."""
    planted = tmp_path / "planted"
    spoilt = tmp_path / "spoilt"
    spoilt.mkdir()
    for name in ("json", "jupyter_server", "workshop", "jupyterlab", "sys"):
        (spoilt / f"{name}.py").write_text(f"open({str(planted)!r}, 'w')\n")
    course = tmp_path / "course"
    shutil.copytree(spoilt, course)
    python = course / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    # The last start ends at once, where JupyterLab itself would serve.
    python.write_text(
        f'#!/bin/bash\n[[ $* == *--config=* ]] && set -- "${{@:1:3}}" --version\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    shutil.copytree(spoilt, tmp_path / "notebooks")
    commands = "find_port() { echo 8888; }; create_passwd() { echo secret; }\n"
    variables = {"PYTHONPATH": str(spoilt), "WORKSHOP_NOTEBOOKS": str(tmp_path / "notebooks")}
    for name in ("before.sh.erb", "script.sh.erb"):
        script = commands + render(f"template/{name}", course=str(course), class_folder="")
        done = shell(script, spoilt, **variables)
        assert done.returncode == 0, done.stderr
        assert not planted.exists(), name


@pytest.mark.starts
def test_button_opens_the_learners_own_copy_of_the_notebooks(tmp_path):
    with ondemand_app.session(tmp_path) as session:
        answer = press(session.page, f"http://127.0.0.1:{session.port}", session.log)
        names = {entry["name"] for entry in answer["content"]}
        assert (
            "00_start.ipynb" in names
            and (session.home / "workshop-notebooks/00_start.ipynb").exists()
        )
        assert (session.folder / "jupyter_server_config.json").stat().st_mode & 0o777 == 0o600
        assert (
            ondemand_app.PASSWORD
            not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
        )


def press(page: str, address: str, log: Path) -> dict:
    """Do what the page's button does, then list the folder with the session's cookies."""
    target = re.search(r'action="([^"]+)"', page)[1]
    fields = dict(re.findall(r'name="(\w+)" value="([^"]+)"', page))
    opener = urllib.request.build_opener(
        urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
    )
    deadline = time.monotonic() + 90
    while True:
        try:
            opener.open(address + target, urllib.parse.urlencode(fields).encode(), timeout=60)
            return json.load(
                opener.open(address + target.removesuffix("login") + "api/contents", timeout=60)
            )
        except OSError:
            if time.monotonic() > deadline:
                raise AssertionError(log.read_text()[-3000:]) from None
            time.sleep(0.5)

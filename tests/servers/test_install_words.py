"""A wheel's user is told of commands that a wheel has, and keeps a site.sh that no upgrade touches."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from workshop import cli, install_words
from workshop.errors import WorkshopError
from workshop.lab import doctor
from workshop.servers.checks import LACK, NOTE
from workshop.servers.slurm import site
from workshop.servers.slurm.submit import submission

ROOT = Path(__file__).parents[2]
SOURCES = [*(ROOT / "workshop").rglob("*.py"), *(ROOT / "workshop").rglob("*.toml")]


@pytest.fixture
def wheel(monkeypatch, tmp_path):
    """The same package, as if it lay in site-packages."""
    monkeypatch.setattr(install_words, "REPOSITORY", tmp_path)


def test_no_remedy_names_a_target_of_make_that_a_wheel_cannot_say_otherwise():
    named = set()
    for path in SOURCES:
        if path.name != "install_words.py" and "data" not in path.parts:
            text = path.read_text(encoding="utf-8")
            named |= set(re.findall(r"[\"'`(: ](make [a-z]+(?: installs it)?)[\"'`). ]", text))
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    of_make = {phrase for phrase in named if phrase.split()[1] in targets}
    assert of_make
    for phrase in of_make:
        assert not re.search(r"\bmake\b", install_words.adapted(phrase, checkout=False)), phrase


def test_a_remedy_of_a_checkout_stays_as_it_is():
    assert install_words.is_checkout()
    assert install_words.adapted("make workshop") == "make workshop"


def test_an_error_on_a_wheel_names_what_pip_installs(wheel, capsys):
    with pytest.raises(SystemExit):
        cli._show(WorkshopError("vLLM is not installed.", "Run `make workshop`."))
    shown = capsys.readouterr().err
    assert "pip install 'distributed-inference-workshop[local]'" in shown and "make " not in shown


def test_doctor_on_a_wheel_names_no_make_and_no_file_of_the_checkout(
    wheel, monkeypatch, workshop_home
):
    monkeypatch.setattr(doctor, "installed", lambda: ("", ""))
    monkeypatch.setattr(doctor, "_version", lambda name: "")
    remedies = [check.remedy for check in doctor.examine()]
    assert any("pip install" in remedy for remedy in remedies)
    assert not [remedy for remedy in remedies if re.search(r"\bmake\b|slurm/site\.sh", remedy)]


@pytest.mark.parametrize(("has_sbatch", "state"), [(True, NOTE), (False, LACK)])
def test_doctor_asks_for_a_server_only_where_no_job_can_start_one(
    has_sbatch, state, monkeypatch, workshop_home
):
    monkeypatch.delenv("WORKSHOP_URL", raising=False)
    monkeypatch.delenv("WORKSHOP_SHARED", raising=False)
    monkeypatch.setattr(doctor, "installed", lambda: ("", ""))
    monkeypatch.setattr(doctor.shutil, "which", lambda name: name if has_sbatch else None)
    (check,) = doctor._servers()
    assert check.state == state and check.remedy


@pytest.fixture
def no_site(monkeypatch, workshop_home, tmp_path):
    for name in ("WORKSHOP_SITE", "WORKSHOP_SLURM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(site, "FOR_ALL", tmp_path / "nobody" / "site.sh")
    return workshop_home


def test_slurm_site_makes_a_file_in_the_users_own_folder_once(no_site):
    done = CliRunner().invoke(cli.group, ["slurm", "site"])
    own = no_site / "site.sh"
    assert done.exit_code == 0 and done.stdout.strip() == str(own)
    own.write_text(own.read_text().replace("SBATCH_PARTITION= ", "SBATCH_PARTITION=gpu "))
    edited = own.read_text()
    assert CliRunner().invoke(cli.group, ["slurm", "site"]).exit_code == 0
    assert own.read_text() == edited


def test_the_own_site_file_counts_for_plans_and_jobs(no_site, tmp_path):
    assert site.site_file() == ROOT / "slurm" / "site.sh"
    own, is_new = site.make_own_file()
    own.write_text(own.read_text().replace("SBATCH_PARTITION= ", "SBATCH_PARTITION=gpu "))
    assert is_new and site.site_file() == own
    assert site.environment()["SBATCH_PARTITION"] == "gpu"
    assert site.environment()["WORKSHOP_SITE"] == str(own)
    (tmp_path / "models").mkdir()
    own.write_text(own.read_text() + f"\nexport WORKSHOP_MODELS={tmp_path / 'models'}\n")
    prepared = submission.prepare(submission.SubmitRequest(what="70b"))
    assert prepared.settings["slurm_folder"].split(";")[0].endswith(f" WORKSHOP_SITE={own}")


def test_plain_sbatch_hands_the_own_file_to_the_job(no_site):
    own, _ = site.make_own_file()
    line = f'source "{own}" && echo "$WORKSHOP_SITE"'
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert done.stdout.strip() == str(own), done.stderr


def test_an_administrators_file_is_what_the_own_one_begins_with(no_site, monkeypatch, tmp_path):
    for_all = tmp_path / "etc" / "site.sh"
    for_all.parent.mkdir()
    for_all.write_text("# of this cluster\nexport SBATCH_ACCOUNT=lab\n")
    monkeypatch.setattr(site, "FOR_ALL", for_all)
    site.make_own_file()
    assert site.environment()["SBATCH_ACCOUNT"] == "lab"


def test_workshop_site_counts_most(no_site, monkeypatch, tmp_path):
    site.make_own_file()
    (tmp_path / "mine.sh").write_text("export SBATCH_PARTITION=mine\n")
    monkeypatch.setenv("WORKSHOP_SITE", str(tmp_path / "mine.sh"))
    assert site.site_file() == tmp_path / "mine.sh"

"""Whose a name in the class's folder is: the owner of the file decides, and odd files never stop the table."""

from __future__ import annotations

import json
import os
import socket

import pytest
from click.testing import CliRunner

from workshop.cli import progress as cli
from workshop.course import class_progress, exercises
from workshop.course.class_progress import LATER, SEVERAL, read, share, withdraw
from workshop.course.exercises import all_exercises
from workshop.errors import BadInput, WorkshopError

UPDATED = "2026-11-22T09:00:00+00:00"


@pytest.fixture
def folder(tmp_path, monkeypatch, workshop_home):
    monkeypatch.setenv("WORKSHOP_SHARED", str(tmp_path / "class"))
    place = tmp_path / "class" / "progress"
    place.mkdir(parents=True)
    place.chmod(0o3730)
    return place


@pytest.fixture
def owners(monkeypatch):
    """Accounts by the name of a file: a test cannot give files to other users."""
    accounts = {}
    look = class_progress._text_and_owner

    def as_if(path):
        text, status = look(path)
        fields = list(status)
        fields[4] = accounts.get(path.name, status.st_uid)
        return text, os.stat_result(fields)

    monkeypatch.setattr(class_progress, "_text_and_owner", as_if)
    return accounts


def write(folder, file: str, name: str) -> None:
    (folder / file).write_text(
        json.dumps({"name": name, "updated": UPDATED, "checks": {}, "tests": {}})
    )


def claims() -> dict[str, str]:
    return {learner.file: learner.claim for learner in read(all_exercises())[0]}


def run(*args: str):
    return CliRunner().invoke(cli.command, args)


def test_another_account_that_takes_a_known_name_is_told(folder, owners):
    owners |= {"1.json": 1001, "2.json": 1002}
    write(folder, "1.json", "Ada")
    assert claims() == {"1.json": ""}
    write(folder, "2.json", "Ada")
    assert claims() == {"1.json": "", "2.json": LATER}
    done = run("--shared")
    assert done.exit_code == 0 and done.stderr.count(LATER) == 1
    assert "2.json says that it is Ada" in done.stderr and f"ls -l {folder}" in done.stderr
    people = json.loads(run("--shared", "--json").stdout)["learners"]
    assert {person["file"]: person["claim"] for person in people} == {"1.json": "", "2.json": LATER}
    (folder / "1.json").unlink()
    assert claims() == {"2.json": LATER}, "also after the first one has gone"


def test_a_learner_who_begins_again_keeps_the_name(folder, owners):
    owners |= {"1.json": 1001, "3.json": 1001}
    write(folder, "1.json", "Ada")
    claims()
    (folder / "1.json").unlink()
    write(folder, "3.json", "Ada")
    assert claims() == {"3.json": ""}


def test_a_name_that_two_accounts_bring_at_once_is_nobodys(folder, owners):
    owners |= {"1.json": 1001, "2.json": 1002}
    write(folder, "1.json", "Ada")
    write(folder, "2.json", "Ada")
    assert claims() == claims() == {"1.json": SEVERAL, "2.json": SEVERAL}


@pytest.mark.parametrize(
    "other", ["ada l.", "Ada  L.", " ADA L. ", "A\u200bda L.", "Аdа L.", "Ａｄａ L.", "Àdá L."]
)
def test_a_name_that_looks_the_same_is_the_same(folder, owners, other):
    owners |= {"1.json": 1001, "2.json": 1002}
    write(folder, "1.json", "Ada L.")
    claims()
    write(folder, "2.json", other)
    assert claims()["2.json"] == LATER


def test_names_of_another_class_do_not_count(folder, owners, tmp_path, monkeypatch):
    owners |= {"1.json": 1001, "2.json": 1002}
    write(folder, "1.json", "Ada")
    claims()
    monkeypatch.setenv("WORKSHOP_SHARED", str(tmp_path / "other"))
    (tmp_path / "other" / "progress").mkdir(parents=True)
    write(tmp_path / "other" / "progress", "2.json", "Ada")
    assert claims() == {"2.json": ""}


def test_two_looks_at_once_lose_no_name(folder, owners, monkeypatch):
    write(folder, "1.json", "Ada")
    remember = class_progress._remember

    def after_another_look(place, first):
        monkeypatch.setattr(class_progress, "_remember", remember)
        write(folder, "2.json", "Ben")
        read(all_exercises())
        (folder / "2.json").unlink()
        return remember(place, first)

    monkeypatch.setattr(class_progress, "_remember", after_another_look)
    read(all_exercises())
    assert set(class_progress._remembered()[str(folder)]) == {"ada", "ben"}


def test_the_owner_is_that_of_the_file(folder):
    write(folder, "1.json", "Ada")
    assert class_progress._text_and_owner(folder / "1.json")[1].st_uid == os.geteuid()


@pytest.mark.parametrize("content", ["{", "[]", '{"/x": 5}', '{"/x": {"ada": "me"}}', "[" * 30_000])
def test_a_damaged_table_of_names_is_refused_and_kept(folder, workshop_home, content):
    write(folder, "1.json", "Ada")
    workshop_home.mkdir(exist_ok=True)
    (workshop_home / class_progress.NAMES).write_text(content)
    with pytest.raises(BadInput) as error:
        read(all_exercises())
    assert "move it away" in error.value.remedy
    assert (workshop_home / class_progress.NAMES).read_text() == content


def test_the_table_is_shown_where_names_cannot_be_kept(folder, monkeypatch):
    write(folder, "1.json", "Ada")

    def full(*args):
        raise WorkshopError("No space is left.")

    monkeypatch.setattr(class_progress, "write_private", full)
    learners, passed = read(all_exercises())
    assert [learner.name for learner in learners] == ["Ada"] and "No space is left." in passed[0]


def test_links_pipes_and_sockets_in_the_folder_are_passed_over(folder, tmp_path, monkeypatch):
    write(folder, "good.json", "Ada")
    os.link(folder / "good.json", folder / "hard.json")
    (folder / "link.json").symlink_to("good.json")
    (folder / "device.json").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.json")
    (folder / "folder.json").mkdir()
    (tmp_path / "secret").write_text("of the instructor")
    (folder / "secret.json").symlink_to(tmp_path / "secret")
    with open(os.fsencode(folder) + b"/\xff.json", "w") as file:
        file.write("{")
    monkeypatch.chdir(folder)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.json")
        learners, passed = read(all_exercises())
    assert [learner.file for learner in learners] == ["good.json"]
    assert (
        "link.json: it is a link, not a file" in passed
        and "pipe.json: it is a pipe, not a file" in passed
    )
    assert len(passed) == 8 and not any("of the instructor" in line for line in passed)
    assert all(line.isprintable() for line in passed)


def test_a_folder_in_which_files_can_be_replaced_is_told(folder):
    assert "chmod +t" not in run("--shared").stderr
    folder.chmod(0o2770)
    assert f"chmod +t {folder}" in run("--shared").stderr


@pytest.mark.parametrize(
    ("mode", "who"),
    [
        (0o3730, "the folder's owner"),
        (0o3770, "members of the class's group"),
        (0o3777, "everybody on this machine"),
    ],
)
def test_who_sees_the_account_is_said_when_a_learner_shares(folder, mode, who):
    folder.chmod(mode)
    output = run("--share").stdout
    assert f"but its owner does: {who} can see it" in output
    [file] = folder.iterdir()
    assert os.environ.get("USER", "nobody at all") not in file.name + file.read_text()


def test_a_withdrawal_that_did_not_happen_is_not_reported_as_one(folder, tmp_path, workshop_home):
    share({})
    folder.rename(tmp_path / "away")
    with pytest.raises(WorkshopError, match="is away"):
        withdraw()
    (tmp_path / "away").rename(folder)
    assert withdraw() and list(folder.iterdir()) == [] and not withdraw()


@pytest.mark.parametrize("kind", ["pipe", "cut", "folder"])
def test_odd_files_of_ones_own_never_hang(folder, workshop_home, kind):
    workshop_home.mkdir(exist_ok=True)
    note = workshop_home / class_progress.NOTE
    if kind == "pipe":
        os.mkfifo(note)
    elif kind == "folder":
        note.mkdir()
    else:
        note.write_text('{"path": ')
    class_progress.renew({})
    with pytest.raises(WorkshopError, match="does not say which file is yours"):
        withdraw()
    assert exercises.check("memory.weights_405b", 810)


def test_a_home_folder_of_nobody_is_one_sentence(monkeypatch):
    monkeypatch.setenv("WORKSHOP_SHARED", "~no-such-user-here/class")
    with pytest.raises(BadInput, match="There is no folder ~no-such-user-here"):
        class_progress.folder()

"""Progress of a class: who wants to shares tries, without a name; bad and foreign files never stop the table."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner

from workshop.cli.teach import progress as cli
from workshop.cli.teach.before_after import questions
from workshop.course.exercises import checking
from workshop.course.exercises.checking import all_exercises, check
from workshop.course.progress import class_progress
from workshop.course.progress.class_progress import read, share, withdraw
from workshop.errors import BadInput, WorkshopError

GOOD = {"name": "ada", "updated": "2026-11-22T09:00:00+00:00", "checks": {}, "tests": {}}
WHEN = {"pre": "--before", "post": "--after"}
TRIED = {
    "memory.weights_405b": {"tries": 3, "done": False},
    "start.total_tokens": {"tries": 1, "done": True},
}


@pytest.fixture
def folder(tmp_path, monkeypatch, workshop_home):
    """The class's folder, as the remedy makes it; no test is strict here."""
    monkeypatch.delenv("WORKSHOP_STRICT", raising=False)
    monkeypatch.setenv("WORKSHOP_SHARED", str(tmp_path / "class"))
    (tmp_path / "class" / "progress").mkdir(parents=True, mode=0o3730)
    return tmp_path / "class" / "progress"


def run(*args: str) -> str:
    done = CliRunner().invoke(cli.command, args, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_nothing_is_shared_unless_the_learner_wants_it(folder):
    check("memory.weights_405b", 405)
    assert list(folder.iterdir()) == [] and "Nobody shares" in run("--shared")


def test_what_is_shared_follows_the_checks_and_names_nobody(folder, workshop_home):
    check("memory.weights_405b", 405)
    checking.predict("memory.example", ("more", "less")).choose("less")
    name = share(checking.progress())
    [path] = folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o640 and path.stat().st_gid == folder.stat().st_gid
    check("memory.weights_405b", 404)
    [learner], passed = read(all_exercises())
    assert (
        learner.checks == {"memory.weights_405b": {"tries": 2, "done": False}}
        and learner.name == name
        and not passed
    )
    assert (
        "memory.example" not in path.read_text()
        and os.environ.get("USER", "nobody at all") not in path.read_text()
    )
    check("memory.weights_405b", 810)
    assert read(all_exercises())[0][0].checks == {"memory.weights_405b": {"tries": 3, "done": True}}


def test_a_name_is_shown_where_the_learner_gives_one_and_goes_when_they_withdraw(folder):
    check("memory.weights_405b", 405)
    output = run("--share", "  ")
    assert "as learner " in output and "its owner does" in output
    run("--share", "Ada L.")
    assert (
        "Ada L." in run("--shared")
        and "01_memory" in run("--shared")
        and "memory.weights_405b (1)" in run("--shared")
    )
    run("--share")
    assert "Ada L." not in run("--shared") and len(list(folder.iterdir())) == 1, (
        "one learner, one file"
    )
    run("--withdraw")
    assert list(folder.iterdir()) == [] and "share nothing" in run("--withdraw")
    check("memory.weights_405b", 404)
    assert list(folder.iterdir()) == []


def test_the_table_says_which_check_fails_for_how_many(folder):
    for number, tries in enumerate((1, 2, 6)):
        checks = TRIED | {"memory.weights_405b": {"tries": tries, "done": number == 0}}
        data = GOOD | {"name": f"l{number}", "checks": checks, "tests": {"pre": 4 + number}}
        data["updated"] = f"2026-11-22T09:00:00+0{number}:00"
        (folder / f"{number}.json").write_text(json.dumps(data))
    report = json.loads(run("--shared", "--json"))
    assert report["learners"][0]["tests"] == {"pre": 4}
    assert report["checks"] == {"memory.weights_405b": {"failing": 2, "tried": 3}}
    assert [learner["done"] for learner in report["learners"]] == [2, 1, 1] and report["learners"][
        0
    ]["notebook"] == "01_memory"
    table = run("--shared")
    assert "pre-test: 5.0 of 10 right, 3 learners" in table
    assert all(f"2026-11-22 0{hour}:00 " in table for hour in (9, 8, 7)), "of other zones, too"


def test_a_file_that_cannot_be_read_is_passed_over(folder, subtests):
    (folder / "good.json").write_text(json.dumps(GOOD | {"checks": TRIED}))
    for bad in ("{", {"name": "ada"}, GOOD | {"checks": {"memory.weights_405b": "many"}}):
        with subtests.test(str(bad)):
            (folder / "bad.json").write_text(bad if isinstance(bad, str) else json.dumps(bad))
            done = CliRunner().invoke(cli.command, ["--shared"])
            assert done.exit_code == 0 and "ada" in done.stdout
            assert "passed over: bad.json" in done.stderr


def test_words_of_a_file_are_shown_and_never_obeyed(folder):
    checks = TRIED | {"no.such\x1b[2J": {"tries": 1, "done": False}}
    data = GOOD | {"name": "[red]\x1b[2Jada" + "x" * 100, "checks": checks}
    (folder / "a.json").write_text(json.dumps(data))
    assert (
        "\x1b" not in run("--shared")
        and "[red]" in run("--shared")
        and "no.such" not in run("--shared")
    )


def test_a_folder_that_is_not_there_comes_with_how_to_make_it(folder, monkeypatch):
    folder.rmdir()
    with pytest.raises(BadInput, match="chmod 3730"):
        share({})
    monkeypatch.delenv("WORKSHOP_SHARED")
    with pytest.raises(BadInput, match="WORKSHOP_SHARED is not set"):
        read(all_exercises())
    with pytest.raises(BadInput, match="40 letters"):
        share({}, "\x1b[2J")


def test_a_folder_that_goes_away_does_not_stop_a_learner(folder):
    share({})
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert check("memory.weights_405b", 810)


def test_options_that_contradict_are_refused(folder, subtests):
    for wrong in [
        ("--shared", "--share"),
        ("--share", "ada", "--withdraw"),
        ("--shared", "--withdraw"),
    ]:
        with subtests.test(str(wrong)), pytest.raises(BadInput, match="Give one"):
            CliRunner().invoke(cli.command, wrong, catch_exceptions=False)


def test_ones_own_progress_says_what_is_not_right_yet(folder):
    check("memory.weights_405b", 405)
    assert "not yet: memory.weights_405b (1 try)" in run() and "8. Elsewhere" in run()
    assert json.loads(run("--json"))["memory.weights_405b"]["tries"] == 1


def ask(when: str, answers: str) -> str:
    done = CliRunner().invoke(
        cli.command, [WHEN[when], "--answers", answers], catch_exceptions=False
    )
    assert done.exit_code == 0
    return done.stdout


def test_ten_questions_before_and_after(folder):
    questions_by_key = questions()
    right = "".join(
        next(letter for letter in question.options if question.test(letter) is None)
        for question in questions_by_key.values()
    )
    assert len(questions_by_key) == 10 and len(set(right)) >= 3, "the letter gives nothing away"
    for question in questions_by_key.values():
        assert len(question.options) == 4 and all(why for _, why in question.options.values())
    share({})
    output = ask("pre", "aaaaaaaaaa")
    assert f"{right.count('a')} of 10 right" in output and not any(
        why in output for _, why in questions_by_key["grows"].options.values()
    )
    output = ask("post", right)
    assert (
        f"10 of 10 right; before the course {right.count('a')}" in output
        and questions_by_key["grows"].options["b"][1] in output
    )
    assert read(all_exercises())[0][0].tests == {"pre": right.count("a"), "post": 10}
    with pytest.raises(BadInput, match="not 10 letters"):
        ask("pre", "abcx")


def test_questions_are_asked_one_by_one_until_each_has_a_letter(folder):
    done = CliRunner().invoke(cli.command, ["--before"], input="z\na\n" + "b\n" * 9)
    assert (
        done.exit_code == 0
        and "10. " in done.stdout
        and checking.progress()["test.pre"]["answers"] == "abbbbbbbbb"
    )


def test_a_withdrawal_that_did_not_happen_is_not_reported_as_one(folder, tmp_path, workshop_home):
    share({})
    folder.rename(tmp_path / "away")
    with pytest.raises(WorkshopError, match="cannot be removed"):
        withdraw()
    (tmp_path / "away").rename(folder)
    assert withdraw() and list(folder.iterdir()) == [] and not withdraw()


def test_a_damaged_note_of_ones_own_stops_no_check(folder, workshop_home):
    workshop_home.mkdir(exist_ok=True)
    (workshop_home / class_progress.NOTE).write_text('{"path": ')
    with pytest.raises(WorkshopError, match="cannot be removed"):
        withdraw()
    assert checking.check("memory.weights_405b", 810)

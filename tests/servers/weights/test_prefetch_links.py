"""prefetch writes to files of its own alone, whatever lies under their names; Python files come only if asked for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from hub_server import HUB_ID, model, serve

from workshop.cli.prefetch import command
from workshop.errors import WorkshopError
from workshop.servers.weights import prefetch

SHARD = "model-00001-of-00002.safetensors"
CODE = {
    "modeling_tiny.py": b"import os\n",
    "configuration_tiny.py": b"x = 1\n",
    "lib/helper.py": b"y = 2\n",
}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    yield from serve(monkeypatch, tmp_path, model() | CODE)


@pytest.fixture
def diary(tmp_path) -> Path:
    """A file of the person who downloads, which somebody else would like to see changed."""
    path = tmp_path / "private" / "diary"
    path.parent.mkdir(mode=0o700)
    path.write_text("mine")
    path.chmod(0o600)
    return path


def part_of(remote, name: str) -> str:
    file = next(file for file in remote.files if file.name == name)
    return f"{name}.{(file.sha256 or file.blob)[:12]}.part"


def fetch(folder: Path, **options) -> prefetch.Report:
    remote = prefetch.look_up(HUB_ID, **options)
    prefetch.download(remote, folder)
    return prefetch.verify(folder, remote, checksums=True)


@pytest.mark.parametrize("name", ["config.json", SHARD])
@pytest.mark.parametrize("text", ["", "mine", "m" * 400_000], ids=["empty", "short", "long"])
@pytest.mark.parametrize("place", ["part", "target"])
def test_a_hard_link_under_a_name_of_ours_is_not_written_through(
    hub, tmp_path, diary, name, text, place
):
    """A hard link under the part's name once took what was downloaded."""
    folder = tmp_path / "Tiny-Llama"
    folder.mkdir(mode=0o755)
    diary.write_text(text)
    os.link(diary, folder / (part_of(prefetch.look_up(HUB_ID), name) if place == "part" else name))
    assert fetch(folder).ok
    assert (
        diary.read_text() == text
        and diary.stat().st_mode & 0o777 == 0o600
        and diary.stat().st_nlink == 1
    )


def test_a_hard_link_of_the_right_length_is_not_opened_to_others(hub, tmp_path, diary):
    folder = tmp_path / "Tiny-Llama"
    folder.mkdir(mode=0o755)
    diary.write_bytes(b"m" * len(model()["config.json"]))
    os.link(diary, folder / "config.json")
    prefetch.download(prefetch.look_up(HUB_ID), folder)
    assert diary.stat().st_mode & 0o777 == 0o600 and set(diary.read_text()) == {"m"}
    assert (folder / "tokenizer.json").stat().st_mode & 0o044


@pytest.mark.parametrize("name", ["config.json", SHARD])
@pytest.mark.parametrize("exists", [True, False])
def test_a_link_under_a_files_name_is_replaced_and_not_followed(hub, tmp_path, diary, name, exists):
    folder = tmp_path / "Tiny-Llama"
    folder.mkdir()
    goal = diary if exists else diary.with_name("new")
    (folder / name).symlink_to(goal)
    assert fetch(folder).ok and not (folder / name).is_symlink()
    assert os.listdir(diary.parent) == ["diary"] and diary.read_text() == "mine"


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_under_a_parts_name_is_named_and_left(hub, tmp_path, diary, exists):
    folder = tmp_path / "Tiny-Llama"
    folder.mkdir()
    part = folder / part_of(prefetch.look_up(HUB_ID), "config.json")
    part.symlink_to(diary if exists else diary.with_name("new"))
    with pytest.raises(WorkshopError, match=rf"{part.name} is a link") as caught:
        fetch(folder)
    assert "Remove" in caught.value.remedy and part.is_symlink()
    assert os.listdir(diary.parent) == ["diary"] and diary.read_text() == "mine"


@pytest.mark.parametrize("place", ["part", "target"])
def test_a_pipe_under_a_name_of_ours_makes_nobody_wait(hub, tmp_path, place):
    folder = tmp_path / "Tiny-Llama"
    folder.mkdir()
    os.mkfifo(
        folder
        / (part_of(prefetch.look_up(HUB_ID), "config.json") if place == "part" else "config.json")
    )
    assert fetch(folder).ok


@pytest.mark.parametrize("place", ["part", "target"])
def test_a_folder_under_a_name_of_ours_is_one_sentence(hub, tmp_path, place):
    folder = tmp_path / "Tiny-Llama"
    name = part_of(prefetch.look_up(HUB_ID), "config.json") if place == "part" else "config.json"
    (folder / name / "mine").mkdir(parents=True)
    with pytest.raises(WorkshopError, match="Cannot write"):
        fetch(folder)
    assert (folder / name / "mine").is_dir()


def test_what_an_earlier_run_left_is_still_gone_on_with(hub, tmp_path):
    folder, name = tmp_path / "Tiny-Llama", SHARD
    folder.mkdir()
    (folder / part_of(prefetch.look_up(HUB_ID), name)).write_bytes(hub.files[name][:1000])
    assert fetch(folder).ok
    assert (name, 1000) in hub.ranges


def test_python_files_are_left_out_and_named(hub, tmp_path):
    done = CliRunner().invoke(command, [HUB_ID, "--to", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert not list(tmp_path.rglob("*.py"))
    assert (
        "3 Python files" in done.output
        and "--trust-remote-code" in done.output
        and "modeling_tiny.py" in done.output
    )


def test_python_files_come_where_they_are_asked_for(hub, tmp_path):
    done = CliRunner().invoke(
        command, [HUB_ID, "--to", str(tmp_path), "--trust-remote-code", "--json"]
    )
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["notes"]) == 1
    for name, text in CODE.items():
        assert (tmp_path / "Tiny-Llama" / name).read_bytes() == text


def test_nothing_is_said_of_python_files_where_there_are_none(hub, tmp_path):
    for name in CODE:
        del hub.files[name]
    done = CliRunner().invoke(command, [HUB_ID, "--to", str(tmp_path), "--json"])
    assert len(json.loads(done.stdout)["notes"]) == 1
    assert prefetch.look_up(HUB_ID).code == ()

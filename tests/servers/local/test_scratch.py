"""What a server leaves on the machine: in a folder of its own, and gone with it; nothing of anybody else's."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
from multiprocessing import shared_memory

import pytest

from workshop.errors import WorkshopError
from workshop.servers.local import scratch


@pytest.fixture(autouse=True)
def own_places(workshop_home, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", tempfile.mkdtemp(prefix="t"))
    yield
    os.rmdir(tempfile.gettempdir())


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """A folder in the place of /dev/shm."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(scratch, "SHARED_MEMORY", tmp_path / "shm")
    return tmp_path / "shm"


def mapped(path, size: int = 4096) -> mmap.mmap:
    with open(path, "w+b") as file:
        file.truncate(size)
        return mmap.mmap(file.fileno(), size)


def test_folder_is_closed_to_others_and_sockets_fit_into_it():
    old = os.umask(0)
    try:
        folder = scratch.make("a")
    finally:
        os.umask(old)
    assert folder.stat().st_mode & 0o777 == 0o700 and scratch.of("a") == folder
    assert {**scratch.environment(folder)}["VLLM_RPC_BASE_PATH"] == str(folder)
    assert len(f"{folder}/01234567-89ab-cdef-0123-456789abcdef") <= 107
    scratch.remove("a")
    assert not folder.exists() and scratch.of("a") is None


def test_path_too_long_for_a_socket_is_not_taken(monkeypatch, tmp_path):
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    old, tempfile.tempdir = tempfile.tempdir, str(deep)
    try:
        folder = scratch.make("a")
        assert str(folder.parent) == "/tmp"
        scratch.remove("a")
    finally:
        tempfile.tempdir = old


def test_no_place_for_a_folder_is_one_sentence(monkeypatch):
    def refuse(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(scratch.tempfile, "mkdtemp", refuse)
    with pytest.raises(WorkshopError, match="No folder for the server's sockets") as error:
        scratch.make("a")
    assert "TMPDIR" in error.value.remedy


def test_what_a_killed_server_left_goes_when_its_name_is_used_again():
    first = scratch.make("a")
    (first / "socket").touch()
    second = scratch.make("a")
    assert not first.exists() and second.exists()
    scratch.remove("a")


def test_only_a_folder_that_is_certainly_ours_is_removed(tmp_path):
    other, link = tmp_path / "theirs", tmp_path / "workshop-link"
    other.mkdir()
    link.symlink_to(other)
    for pointer in ("/", "", "workshop-x", "\0", "/nowhere/workshop-x", str(link), str(other)):
        scratch.private_folder("run").joinpath("a").write_text(pointer)
        assert scratch.of("a") is None, pointer
        scratch.remove("a")
        assert other.is_dir() and link.is_symlink(), pointer


def test_shared_memory_of_a_dead_server_goes_and_no_other(shared):
    folder = scratch.make("a")
    (shared / "psm_older").write_bytes(b"x")
    older = mapped(shared / "psm_older")  # there before the server
    notes = scratch.Notes(folder)
    # of another process, which has it open but not mapped
    (shared / "psm_theirs").write_bytes(b"x")
    ours = mapped(shared / "psm_ours")
    # a model in memory is mapped, and was not made by vLLM
    model = mapped(shared / "model.safetensors")
    still = mapped(shared / "vllm_still_used")
    with open(
        shared / "sem.temporary", "w+b"
    ) as file:  # glibc maps a semaphore, then gives it its name
        file.truncate(32)
        semaphore = mmap.mmap(file.fileno(), 32)
    os.rename(shared / "sem.temporary", shared / "sem.mp-ours")
    notes.take([os.getpid()])
    for mapping in (older, ours, model, semaphore):
        mapping.close()
    scratch.remove("a")
    assert {path.name for path in shared.iterdir()} == {
        "psm_older",
        "psm_theirs",
        "model.safetensors",
        "vllm_still_used",
    }
    still.close()


def test_a_new_file_under_an_old_name_stays(shared):
    folder = scratch.make("a")
    notes = scratch.Notes(folder)
    mapped(shared / "psm_a").close()
    keep = mapped(shared / "psm_b")
    notes.take([os.getpid()])
    keep.close()
    (shared / "held").write_bytes(b"")  # so that no inode is given out a second time
    os.rename(shared / "psm_b", shared / "psm_c")
    (shared / "psm_b").write_bytes(b"another's")
    scratch.remove("a")
    assert {path.name for path in shared.iterdir()} == {"psm_a", "psm_b", "psm_c", "held"}


def test_notes_that_were_cut_or_changed_remove_nothing(shared, subtests):
    for text in ["", "1", "x y z\n", "1 2 \n", "\0", "1 2 /etc/passwd\n", "9" * 5000]:
        with subtests.test(text):
            folder = scratch.make("a")
            (shared / "psm_a").write_bytes(b"x")
            (folder / scratch.NOTES).write_text(text)
            scratch.remove("a")
            assert (shared / "psm_a").exists() and not folder.exists()


def test_a_note_that_is_spoilt_leaves_the_others(shared):
    folder = scratch.make("a")
    notes = scratch.Notes(folder)
    ours = mapped(shared / "psm_ours")
    notes.take([os.getpid()])
    ours.close()
    path = folder / scratch.NOTES
    path.write_bytes(b"1 x \xff\n" + path.read_bytes())
    scratch.remove("a")
    assert not list(shared.iterdir())


def test_real_shared_memory_and_semaphores_of_a_killed_process_are_found():
    folder = scratch.make("a")
    notes = scratch.Notes(folder)
    code = """
import multiprocessing
from multiprocessing import shared_memory
lock = multiprocessing.get_context("spawn").Lock()
memory = shared_memory.SharedMemory(create=True, size=100)
print(memory.name, lock._semlock.name, flush=True)
input()"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    memory, lock = process.stdout.readline().split()
    names = [scratch.SHARED_MEMORY / memory, scratch.SHARED_MEMORY / f"sem.{lock.lstrip('/')}"]
    notes.take([process.pid])
    os.killpg(process.pid, 9)  # with its resource tracker, which would tidy up
    process.communicate()
    left = [name for name in names if name.exists()]
    scratch.remove("a")
    assert memory in {name.name for name in left} and not any(name.exists() for name in names)


@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_shared_memory_that_nobody_noted_is_known_by_its_name(how, tmp_path):
    """Killed in the moment after it was made, also by a process that the engine started."""
    folder = scratch.make("a")
    program = tmp_path / "program.py"
    program.write_text(f"""
import multiprocessing, os
from multiprocessing import shared_memory
from workshop.servers.local.scratch import name_shared_memory
name_shared_memory()  # as vllm_main does where it is __main__ or __mp_main__
def make():
    memory = shared_memory.SharedMemory(create=True, size=100)
    lock = multiprocessing.get_context("spawn").Lock()
    os.write(1, f"{{memory.name}} sem.{{lock._semlock.name[1:]}}\\n".encode())
    input() if multiprocessing.parent_process() is None else __import__("time").sleep(60)
if __name__ == "__main__":
    multiprocessing.get_context("{how}").Process(target=make).start()
    make()""")
    process = subprocess.Popen(
        [sys.executable, program],
        env={**os.environ, "WORKSHOP_SERVER_FOLDER": f"{folder.parent}//{folder.name}/"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    files = [
        scratch.SHARED_MEMORY / name for _ in range(2) for name in process.stdout.readline().split()
    ]
    os.killpg(process.pid, 9)
    process.communicate()
    others = shared_memory.SharedMemory(create=True, size=100)
    try:
        assert len(files) == 4 and all(file.exists() for file in files)
        scratch.remove("a")
        assert not any(file.exists() for file in files)
        assert (scratch.SHARED_MEMORY / others.name).exists()
    finally:
        others.close()
        others.unlink()


def test_shared_memory_of_others_outlives_a_server():
    memory = shared_memory.SharedMemory(create=True, size=100)
    try:
        folder = scratch.make("a")
        notes = scratch.Notes(folder)
        notes.take([os.getpid()])
        scratch.remove("a")
        shared_memory.SharedMemory(memory.name).close()
    finally:
        memory.close()
        memory.unlink()

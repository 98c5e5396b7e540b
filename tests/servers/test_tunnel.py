"""tunnel: the ssh command, the record that comes over ssh, and what ssh must never take for an option."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace

import pytest
from small_server import Handler, serving

from workshop.errors import BadInput, WorkshopError
from workshop.servers import records, tunnel
from workshop.servers.records import ServerRecord

RECORD = ServerRecord(
    "70b",
    "http://10.1.2.3:20008/v1",
    "m",
    "secret-key",
    where="slurm",
    host="gpu01",
    job_id="5",
    state="ready",
    started="2026-11-20T10:00:00.000+00:00",
)


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """A stand-in for ssh: runs the remote command, plain words for any login's shell, or forwards the port with Python."""
    folder, far = tmp_path / "bin", tmp_path / "far"
    folder.mkdir()
    (far / "servers").mkdir(parents=True)
    script = f"""#!{sys.executable}
import os, shlex, socket, subprocess, sys, threading
if "-L" not in sys.argv:
    sys.exit(subprocess.run(shlex.split(sys.argv[-1]), env={{**os.environ, "WORKSHOP_HOME": {str(far)!r}}}).returncode)
_, port, host, target = sys.argv[sys.argv.index("-L") + 1].split(":")
def pump(a, b):
    try:
        while data := a.recv(65536): b.sendall(data)
        b.shutdown(socket.SHUT_WR)
    except OSError: pass
with socket.create_server(("127.0.0.1", int(port))) as server:
    while True:
        near = server.accept()[0]
        try: far = socket.create_connection((host, int(target)))
        except OSError: near.close(); continue  # as ssh does: it stays
        for pair in ((near, far), (far, near)): threading.Thread(target=pump, args=pair, daemon=True).start()
"""
    (folder / "ssh").write_text(script)
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return far


def put(far, record: ServerRecord) -> None:
    (far / "servers" / f"{record.name}.json").write_text(json.dumps(asdict(record), indent=1))


def test_command_binds_the_laptops_own_address_only():
    command = tunnel.command_for(RECORD, "me@login", 8001)
    assert (
        command[-2:] == ["127.0.0.1:8001:10.1.2.3:20008", "me@login"]
        and "ExitOnForwardFailure=yes" in command
    )
    assert "secret-key" not in " ".join(command)
    six = ServerRecord(**{**asdict(RECORD), "url": "http://[fd00::1]:8000/v1"})
    assert "127.0.0.1:8001:[fd00::1]:8000" in tunnel.command_for(six, "me@login", 8001)


def test_login_that_ssh_could_misread_is_refused(subtests):
    for login in ["-oProxyCommand=x", "a b", "", "me@host;rm"]:
        with subtests.test(login), pytest.raises(BadInput, match="no login node"):
            tunnel.checked_login(login)


def test_record_comes_over_ssh_and_the_choices_are_named(ssh, workshop_home):
    with pytest.raises(WorkshopError, match="No server"):
        tunnel.fetch("me@login", None)
    put(ssh, RECORD)
    assert tunnel.fetch("me@login", None) == RECORD
    put(ssh, ServerRecord(**{**asdict(RECORD), "name": "405b"}))
    with pytest.raises(WorkshopError, match="Several servers"):
        tunnel.fetch("me@login", None)
    assert tunnel.fetch("me@login", "405b").name == "405b"
    with pytest.raises(WorkshopError, match="No server '8b' is ready") as error:
        tunnel.fetch("me@login", "8b")
    assert "405b (ready)" in error.value.remedy


def test_a_server_in_doubt_is_taken_only_if_no_other_is_ready(ssh, workshop_home):
    doubtful = replace(RECORD, reason="SLURM does not know its job 5")
    put(ssh, doubtful)
    assert tunnel.fetch("me@login", None) == doubtful, "its own address tells"
    put(ssh, replace(RECORD, name="405b"))
    assert tunnel.fetch("me@login", None).name == "405b"
    assert tunnel.fetch("me@login", "70b") == doubtful


@pytest.mark.live
def test_connect_finds_the_server_through_the_tunnel_while_it_is_open(server, ssh, workshop_home):
    import workshop

    far = ServerRecord(
        **{**asdict(server), "name": "far", "where": "slurm", "job_id": "5", "host": "gpu01"}
    )
    put(ssh, far)
    seen = []

    def ready(local: ServerRecord) -> None:
        assert records.path_of("far").stat().st_mode & 0o777 == 0o600 and local.url != server.url
        seen.append(workshop.connect().complete("The", max_tokens=3).usage.completion_tokens)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tunnel.open_tunnel(tunnel.fetch("me@login", "far"), "me@login", None, ready)
    assert seen == [3] and not records.path_of("far").exists()


def test_server_that_does_not_answer_leaves_no_record(ssh, workshop_home, monkeypatch):
    monkeypatch.setattr(tunnel, "WAIT_S", 0.5)
    with pytest.raises(WorkshopError):
        tunnel.open_tunnel(
            ServerRecord(**{**asdict(RECORD), "url": "http://127.0.0.1:1/v1"}), "me@login", None
        )
    assert not records.path_of("70b").exists()


GOOD = json.dumps(asdict(RECORD)).encode()
BROKEN = [
    b"{",
    b"{}",
    b"{" + b"\xff" * 20,
    b'{"a":' * 5000,
    GOOD.replace(b'"70b"', b'"../../x"'),
    GOOD.replace(b"10.1.2.3:20008", b"h:99999"),
]


@pytest.mark.parametrize("place", ["WORKSHOP_HOME", "WORKSHOP_SHARED"])
def test_the_printed_command_brings_the_record_through_two_shells(
    place, workshop_home, tmp_path, monkeypatch
):
    monkeypatch.setenv(place, str(tmp_path / "it's $(false) a; folder"))
    file = (
        records.path_of("70b").parent
        if place == "WORKSHOP_HOME"
        else tmp_path / "it's $(false) a; folder"
    ) / "70b.json"
    file.parent.mkdir(parents=True)
    file.write_text("the record")
    command = tunnel.explain(RECORD, "me@login", 8000)[2].partition("cluster: ")[2]
    ssh = 'ssh() { shift; sh -c "$*"; }; '  # as ssh does it: the words, with spaces between, for another shell
    assert (
        subprocess.run(["sh", "-c", ssh + command], capture_output=True, text=True).stdout
        == "the record"
    )


@pytest.fixture
def ssh_that_prints(tmp_path, monkeypatch):
    """A stand-in for ssh that prints these bytes."""
    (tmp_path / "ssh").write_text(f"#!/bin/sh\ncat {tmp_path}/said\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return (tmp_path / "said").write_bytes


def test_good_record_is_found_in_whatever_a_login_prints(ssh_that_prints, subtests):
    for noise in [b"", b"Welcome!\n", b"\x1b[31mred", b"\xff\xfe\x00", *BROKEN]:
        with subtests.test(noise):
            ssh_that_prints(noise + b"\n" + GOOD + b"\n" + noise)
            assert tunnel.fetch("me@login", None) == RECORD


def test_output_without_a_record_is_one_sentence(ssh_that_prints, subtests):
    for text in [b"", b"\x1b[31m\n\x00", b"\xff" * 1000, *BROKEN]:
        with subtests.test(text):
            ssh_that_prints(text)
            with pytest.raises(WorkshopError) as error:
                tunnel.fetch("me@login", None)
            message = str(error.value)
            assert len(message) < 300 and message.isprintable() and "secret-key" not in message


def test_a_banner_before_the_first_record_does_not_swallow_it(ssh, monkeypatch):
    put(ssh, RECORD)
    script = (ssh.parent / "bin" / "ssh").read_text()
    (ssh.parent / "bin" / "ssh").write_text(
        script.replace('if "-L"', 'print("Welcome", end="", flush=True)\nif "-L"')
    )
    assert tunnel.fetch("me@login", None) == RECORD


def test_a_name_that_is_taken_here_is_refused_and_stays(ssh, workshop_home):
    existing = ServerRecord(
        **{**asdict(RECORD), "where": "kubernetes", "url": "http://127.0.0.1:9/v1"}
    )
    records.write(existing)
    with pytest.raises(WorkshopError, match="is ready at"):
        tunnel.open_tunnel(RECORD, "me@login", None)
    assert records.read("70b") == existing


@contextmanager
def engine():
    """A server that lives and completes; yields its address."""

    class Answers(Handler):
        def do_GET(self):
            self.body()
            self.reply({"model": "m"})

        do_POST = do_GET

    with serving(Answers) as address:
        yield f"{address}/v1"


def test_a_server_that_starts_again_elsewhere_keeps_its_address_here(
    ssh, workshop_home, monkeypatch
):
    monkeypatch.setattr(tunnel, "LOOK_EVERY_S", 0.2)
    seen, messages = [], []

    def told(text: str) -> None:
        messages.append(text)
        assert records.read("70b").state == "ready", "until it is known to be elsewhere"
        put(ssh, replace(RECORD, url=second, api_key="another-key"))

    with engine() as second, ExitStack() as first:
        put(ssh, replace(RECORD, url=first.enter_context(engine())))

        def ready(local: ServerRecord) -> None:
            seen.append(local)
            if len(seen) == 2:
                raise KeyboardInterrupt
            first.close()
            put(ssh, replace(RECORD, state="starting"))

        with pytest.raises(KeyboardInterrupt):
            tunnel.open_tunnel(tunnel.fetch("me@login", None), "me@login", None, ready, told)
    assert messages == ["No server '70b' is ready on me@login. It is looked for again."]
    assert [local.api_key for local in seen] == ["secret-key", "another-key"]
    assert seen[0].url == seen[1].url and not records.path_of("70b").exists()

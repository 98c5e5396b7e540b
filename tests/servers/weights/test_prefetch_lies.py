"""prefetch trusts neither a mirror, nor a proxy, nor a folder: nothing is written outside, no token leaves."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import odd_answers
import pytest
from click.testing import CliRunner
from hub_server import HUB_ID, FakeHub, serve
from hypothesis import example, given, settings
from hypothesis import strategies as st

from workshop.errors import BadInput, WorkshopError
from workshop.servers.weights import check as slurm_weights
from workshop.servers.weights import hub as prefetch_hub
from workshop.servers.weights import prefetch
from workshop.servers.weights.model_id import hub_id

FILES = {
    "config.json": b'{"model_type": "llama"}',
    "sub/tokenizer.json": b"{}",
    "model.safetensors": b"x" * 300_000,
}
OUTSIDE = [
    "../x.json",
    "/tmp/x.json",
    "a/../../x.json",
    "..",
    ".",
    "",
    "a//b.json",
    "a/",
    "./x.json",
    "..\\x.json",
    "C:\\x.json",
    "C:x.json",
    "a\0.json",
    "a\n.json",
    "\x1b[31m.json",
    "\ud800.json",
    "x" * 300 + ".json",
    "/".join("d" * 1000),
    None,
    5,
    ["x.json"],
    {},
]


@pytest.fixture
def hub(monkeypatch, tmp_path):
    monkeypatch.setattr(prefetch_hub, "TRIES", 1)
    yield from serve(monkeypatch, tmp_path, dict(FILES))


def fetch(folder: Path, token: str | None = None) -> None:
    prefetch.download(prefetch.look_up(HUB_ID, token), folder, token)


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


@pytest.mark.parametrize("name", OUTSIDE)
def test_name_outside_the_folder_is_refused_before_the_first_byte(hub, tmp_path, name):
    hub.lies = {
        "siblings": [{"rfilename": "config.json", "size": 23}, {"rfilename": name, "size": 2}]
    }
    with pytest.raises(WorkshopError, match="no name inside a folder") as caught:
        fetch(tmp_path / "models" / "Tiny-Llama")
    assert caught.value.message.isprintable() and not everything(tmp_path)


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("ab./\\:\0~ é"), max_size=12))
@example("a/..")
@example(" ")
def test_name_that_is_taken_stays_inside(name):
    if slurm_weights.stays_inside(name):
        inside = Path("/models/m")
        assert (inside / name).resolve().is_relative_to(inside) and (
            inside / name
        ).resolve() != inside


@pytest.mark.parametrize(
    "lies",
    [
        {"sha": "../../../../x"},
        {"sha": None},
        {"sha": ""},
        {"siblings": None},
        {"siblings": {}},
        {"siblings": [5]},
        {"siblings": [{"rfilename": "config.json", "size": -1}]},
        {"siblings": [{"rfilename": "config.json", "size": "9"}]},
        {"siblings": [{"rfilename": "config.json", "size": 1e300}]},
        {"siblings": [{"size": 5}]},
        {"siblings": [{"rfilename": "config.json", "size": 5, "lfs": "x"}]},
        {"siblings": [{"rfilename": "config.json", "size": 5, "lfs": {"sha256": "../../../x"}}]},
        {"siblings": [{"rfilename": "config.json", "size": 5, "blobId": ["x"]}]},
    ],
)
def test_answer_that_is_no_list_of_files_is_one_sentence(hub, tmp_path, lies):
    hub.lies = lies
    if lies == {"siblings": {}}:
        assert prefetch.look_up(HUB_ID).files == ()
        return
    with pytest.raises(WorkshopError, match="does not answer with a list of files"):
        fetch(tmp_path / "Tiny-Llama")
    assert not everything(tmp_path)


def test_file_that_is_longer_than_promised_is_not_written_to_the_end(hub, tmp_path):
    """A mirror that promises 1 byte and sends without end would fill the disk."""
    hub.lies = {"siblings": [{"rfilename": "model.safetensors", "size": 100}]}
    folder, seen = tmp_path / "Tiny-Llama", []
    finish = prefetch_hub._finish
    try:
        prefetch_hub._finish = lambda part, *rest: (
            seen.append(part.stat().st_size),
            finish(part, *rest),
        )
        with pytest.raises(WorkshopError, match="came damaged"):
            fetch(folder)
    finally:
        prefetch_hub._finish = finish
    assert seen == [101] and not everything(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_small_and_large_files_are_compared_with_their_digest(hub, tmp_path, name):
    remote = prefetch.look_up(HUB_ID)
    hub.files[name] = hub.files[name][:-1] + b"?"
    with pytest.raises(WorkshopError, match=f"{name} came damaged"):
        prefetch.download(remote, tmp_path / "Tiny-Llama")
    assert name not in everything(tmp_path / "Tiny-Llama")


def test_beginning_of_another_file_does_not_become_this_one(hub, tmp_path):
    """As a login page leaves it, of which the second run asks for the rest."""
    folder, remote = tmp_path / "Tiny-Llama", prefetch.look_up(HUB_ID)
    small = next(file for file in remote.files if file.name == "config.json")
    folder.mkdir()
    (folder / f"config.json.{small.blob[:12]}.part").write_bytes(b"<html>")
    with pytest.raises(WorkshopError, match="came damaged"):
        prefetch.download(remote, folder)
    prefetch.download(remote, folder)
    assert (folder / "config.json").read_bytes() == FILES["config.json"]


@pytest.mark.parametrize("page", ["all", "files"])
def test_login_page_is_told_from_a_model(hub, tmp_path, page):
    hub.page = page
    with pytest.raises(
        WorkshopError, match=r"does not answer with a list|a web page instead"
    ) as caught:
        fetch(tmp_path / "Tiny-Llama")
    assert "login page" in caught.value.remedy and not everything(tmp_path)


def test_token_does_not_follow_to_another_server(hub, tmp_path):
    other = FakeHub(HUB_ID, dict(FILES))
    try:
        hub.elsewhere = other.url.replace("127.0.0.1", "localhost")
        fetch(tmp_path / "Tiny-Llama", "hf_secret")
    finally:
        other.close()
    assert (
        set(hub.tokens) == {"Bearer hf_secret"}
        and len(other.tokens) >= 3
        and set(other.tokens) == {None}
    )


@pytest.mark.parametrize("token", ["hf_ secret", "hf_secret\nX-Other: y", "hf_secré"])
def test_token_that_is_none_is_refused_and_not_shown(hub, tmp_path, token):
    with pytest.raises(BadInput, match="no token has") as caught:
        fetch(tmp_path / "Tiny-Llama", token)
    assert "hf_" not in str(caught.value).replace("HF_TOKEN", "") and not hub.tokens


def test_signature_in_an_address_is_not_shown():
    shown = prefetch_hub.explain(
        HUB_ID, RuntimeError("Client error '410' for url 'http://cdn/x?Signature=abc'")
    )
    assert "cdn" in shown.message and "abc" not in shown.message


def test_links_that_lead_outside_are_not_followed(hub, tmp_path):
    folder, private = tmp_path / "Tiny-Llama", tmp_path / "private"
    private.mkdir()
    (private / "diary").write_text("mine")
    (private / "diary").chmod(0o600)
    folder.mkdir(mode=0o755)
    (folder / "link.json").symlink_to(private / "diary")
    (folder / "sub").symlink_to(private)
    with pytest.raises(WorkshopError, match="leads out of"):
        fetch(folder)
    (folder / "sub").unlink()
    remote = prefetch.look_up(HUB_ID)
    small = next(file for file in remote.files if file.name == "config.json")
    (folder / f"config.json.{small.blob[:12]}.part").symlink_to(private / "diary")
    (folder / "config.json").unlink(missing_ok=True)
    with pytest.raises(WorkshopError):
        prefetch.download(remote, folder)
    (folder / f"config.json.{small.blob[:12]}.part").unlink()
    prefetch.download(remote, folder)
    assert everything(private) == {"diary"} and (private / "diary").read_text() == "mine"
    assert (private / "diary").stat().st_mode & 0o777 == 0o600 and (
        folder / "sub/tokenizer.json"
    ).is_file()


def test_only_what_was_downloaded_is_opened_to_others(hub, tmp_path):
    folder = tmp_path / "Tiny-Llama"
    folder.mkdir(mode=0o755)
    (folder / "notes.txt").write_text("mine")
    (folder / "notes.txt").chmod(0o600)
    fetch(folder)
    assert (folder / "notes.txt").stat().st_mode & 0o777 == 0o600
    assert (folder / "sub/tokenizer.json").stat().st_mode & 0o044


@pytest.mark.parametrize(
    "model", ["lab/..", "../lab", "lab/.hidden", "./lab", "lab/x/..", "\ud800/x", "x" * 5000]
)
def test_model_whose_name_is_no_folder_is_refused(model):
    with pytest.raises(BadInput):
        hub_id(model)


@pytest.mark.parametrize(
    "weight_map", [{"a": "../../x.safetensors"}, {"a": 5}, {"a": ["x"]}, [], None, "x"]
)
def test_index_that_names_files_elsewhere_is_refused(tmp_path, weight_map):
    (tmp_path / slurm_weights.INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(WorkshopError, match="cannot be read"):
        prefetch.verify(tmp_path)


@pytest.mark.parametrize(
    "address", ["not an address", "http://[", "ftp://x", "http://127.0.0.1:1", "http://\udcff/"]
)
def test_mirror_without_address_is_one_sentence(monkeypatch, tmp_path, address):
    from workshop.cli.prefetch import command

    monkeypatch.setenv("HF_ENDPOINT", address)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    done = CliRunner().invoke(command, [HUB_ID, "--to", str(tmp_path)])
    assert isinstance(done.exception, WorkshopError), done.exception


@pytest.mark.parametrize("kind", odd_answers.ENDLESS)
def test_a_list_of_files_without_an_end_is_one_sentence(kind, monkeypatch):
    monkeypatch.setattr(prefetch_hub, "LIST_S", 60.0 if kind == "floods" else 0.5)
    with odd_answers.sound() as server:
        server.answers["/api/models/org/model?blobs=true"] = odd_answers.ENDLESS[kind]
        monkeypatch.setenv("HF_ENDPOINT", server.root)
        with pytest.raises(
            WorkshopError, match=r"its answer has (no end within 0\.5 s|more than 64 MiB)"
        ):
            prefetch_hub.list_files("org/model")


def test_a_token_for_a_mirror_by_plain_http_goes_to_no_web_proxy(hub, tmp_path, monkeypatch):
    """`http_proxy` could read it; 127.0.0.1:9 answers nobody, so whatever asks there fails."""
    for variable in ("http_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    fetch(tmp_path / "model", "hf_token")
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_the_hub_itself_is_reached_through_the_proxy_of_the_environment(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        request_lines: list[bytes] = []

        def answer() -> None:
            for _ in range(2):
                connection = proxy.accept()[0]
                with connection:
                    request_lines.append(connection.recv(1000).split(b"\r\n")[0])
                    connection.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")
        with pytest.raises(WorkshopError):
            prefetch_hub.list_files(HUB_ID)
    assert request_lines[0] == b"CONNECT hub.invalid:443 HTTP/1.1"

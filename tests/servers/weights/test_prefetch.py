"""prefetch: downloads go on, checks find what is broken, gates are explained, small disks are refused."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from hub_server import HUB_ID, FakeHub, model, safetensors, serve
from hypothesis import example, given, settings
from hypothesis import strategies as st

from workshop.cli.serve.prefetch import command
from workshop.errors import BadInput, WorkshopError
from workshop.servers.host.disk import Quota
from workshop.servers.slurm.submit.recipes import model_of
from workshop.servers.weights import check as slurm_weights
from workshop.servers.weights import prefetch
from workshop.servers.weights.model_id import hub_id

SHARD = "model-00001-of-00002.safetensors"
CODE = {"modeling_tiny.py": b"import os\n", "lib/helper.py": b"y = 2\n"}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    yield from serve(monkeypatch, tmp_path, model())


def fetch(folder: Path, token: str | None = None) -> prefetch.Report:
    remote = prefetch.look_up(HUB_ID, token)
    prefetch.download(remote, folder, token)
    return prefetch.verify(folder, remote, checksums=True)


def test_download_is_whole_and_leaves_out_the_second_copy_of_the_weights(hub, tmp_path):
    folder = prefetch.target_folder(HUB_ID, tmp_path)
    report = fetch(folder)
    assert report.ok and report.shards == 2 and folder.name == "Tiny-Llama"
    assert not (folder / "original").exists() and (folder / "tokenizer.json").exists()
    assert all(path.stat().st_mode & 0o004 for path in folder.glob("*.safetensors")), (
        "a colleague's job reads them too"
    )


def test_broken_download_goes_on_where_it_stopped(hub, tmp_path):
    folder, hub.cut = tmp_path / "Tiny-Llama", 100_000
    with pytest.raises(WorkshopError, match="not reached, or broke off"):
        fetch(folder)
    hub.cut, before = 0, len(hub.ranges)
    assert fetch(folder).ok
    assert any(start >= 100_000 for _, start in hub.ranges[before:]), (
        "the second run asked for the rest only"
    )


def test_damaged_shards_are_found_by_name(hub, tmp_path):
    folder = tmp_path / "Tiny-Llama"
    fetch(folder)
    shard = folder / "model-00002-of-00002.safetensors"
    data = shard.read_bytes()
    for damage, message in (
        (data[:-7], "its header promises"),
        (b"", "no whole safetensors file"),
        (safetensors({"other": 200_000}), "lacks 1 tensors of the index, b first"),
    ):
        shard.write_bytes(damage)
        assert any(
            "model-00002" in problem and message in problem
            for problem in prefetch.verify(folder).problems
        )
    shard.unlink()
    assert prefetch.verify(folder).problems == ["model-00002-of-00002.safetensors is missing."]
    assert slurm_weights.missing(folder) == ["model-00002-of-00002.safetensors"]


def test_flipped_byte_is_found_by_checksum(hub, tmp_path):
    folder = tmp_path / "Tiny-Llama"
    fetch(folder)
    shard = folder / "model-00001-of-00002.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert prefetch.verify(folder, prefetch.look_up(HUB_ID)).ok, "sizes and headers do not show it"
    assert not prefetch.verify(folder, prefetch.look_up(HUB_ID), checksums=True).ok


@pytest.mark.parametrize("name", ["config.json", SHARD])
def test_file_that_comes_damaged_is_not_kept(hub, tmp_path, name):
    folder, remote = tmp_path / "Tiny-Llama", prefetch.look_up(HUB_ID)
    hub.files[name] = hub.files[name][:-1] + b"?"
    with pytest.raises(WorkshopError, match=f"{name} came damaged"):
        prefetch.download(remote, folder)
    assert not (folder / name).exists() and not list(folder.glob(f"{name}.*.part"))


def part_of(name: str) -> str:
    """The name of the partial file, of the digest that the Hub tells."""
    file = next(file for file in prefetch.look_up(HUB_ID).files if file.name == name)
    return f"{name}.{(file.sha256 or file.blob)[:12]}.part"


def test_beginning_of_another_file_does_not_become_this_one(hub, tmp_path):
    """As a login page leaves it, of which the second run asks for the rest."""
    folder = tmp_path / "Tiny-Llama"
    folder.mkdir()
    (folder / part_of("config.json")).write_bytes(b"<html>")
    with pytest.raises(WorkshopError, match="came damaged"):
        fetch(folder)
    assert fetch(folder).ok


def test_what_an_earlier_run_left_is_not_asked_for_again(hub, tmp_path):
    folder = tmp_path / "Tiny-Llama"
    folder.mkdir()
    (folder / part_of(SHARD)).write_bytes(hub.files[SHARD][:1000])
    assert fetch(folder).ok and hub.ranges == [(SHARD, 1000)]


@pytest.mark.parametrize("place", ["part", "target"])
def test_a_link_under_a_name_of_ours_is_not_written_through(hub, tmp_path, place):
    folder, diary = tmp_path / "Tiny-Llama", tmp_path / "diary"
    folder.mkdir()
    diary.write_text("mine")
    name = part_of("config.json") if place == "part" else "config.json"
    (folder / name).symlink_to(diary)
    if place == "part":
        with pytest.raises(WorkshopError, match=f"Cannot write .*{name}"):
            fetch(folder)
    else:
        assert fetch(folder).ok and not (folder / name).is_symlink()
    assert diary.read_text() == "mine"


def test_who_may_read_the_folder_may_read_its_files(hub, tmp_path):
    hub.files["sub/tokenizer.json"] = b"{}"
    folder = tmp_path / "Tiny-Llama"
    folder.mkdir(mode=0o755)
    own_umask = os.umask(0o077)
    try:
        fetch(folder)
    finally:
        assert os.umask(own_umask) == 0o077
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.rglob("*")}
    assert (modes["sub"], modes[SHARD], modes["tokenizer.json"]) == (0o755, 0o644, 0o644)


def test_command_says_what_is_there_and_who_sees_it(hub, tmp_path):
    done = CliRunner().invoke(command, [HUB_ID, "--to", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["ok"] and facts["shards"] == 2 and len(facts["notes"]) == 1
    (tmp_path / "Tiny-Llama/model-00001-of-00002.safetensors").unlink()
    again = CliRunner().invoke(command, [HUB_ID, "--to", str(tmp_path), "--verify-only"])
    assert again.exit_code == 1 and "model-00001-of-00002.safetensors is missing" in again.output


def test_gate_is_explained_and_opens_with_a_token(hub, tmp_path):
    hub.gated = "hf_secret"
    with pytest.raises(WorkshopError, match="gated") as error:
        prefetch.look_up(HUB_ID)
    assert (
        f"https://huggingface.co/{HUB_ID}" in error.value.remedy
        and "HF_TOKEN" in error.value.remedy
    )
    assert fetch(tmp_path / "Tiny-Llama", "hf_secret").ok


def test_token_that_is_none_is_refused_and_not_shown(hub, subtests):
    for token in ["hf_ secret", "hf_secret\nX-Other: y", "hf_secré"]:
        with subtests.test(token):
            with pytest.raises(BadInput, match="no token has") as caught:
                prefetch.look_up(HUB_ID, token)
            assert "hf_" not in str(caught.value).replace("HF_TOKEN", "") and not hub.tokens


def test_token_does_not_follow_to_another_server(hub, tmp_path):
    other = FakeHub(HUB_ID, model())
    try:
        hub.elsewhere = other.url.replace("127.0.0.1", "localhost")
        fetch(tmp_path / "Tiny-Llama", "hf_secret")
    finally:
        other.close()
    assert set(hub.tokens) == {"Bearer hf_secret"} and set(other.tokens) == {None}


def test_small_disk_is_refused_with_both_figures_before_the_first_byte(hub, tmp_path, monkeypatch):
    files = tuple(
        prefetch.File(f"model-{number:05}-of-00030.safetensors", 4_704_000_000)
        for number in range(30)
    )
    monkeypatch.setattr(prefetch, "left_bytes", lambda path: 120 * 10**9)  # the seeds' system disk
    with pytest.raises(WorkshopError, match=r"needs 141 GB more.*120 GB free"):
        prefetch.refuse_small_disk(
            prefetch.Remote("meta-llama/Llama-3.1-70B", "main", files), tmp_path / "m"
        )


def test_a_folder_that_may_not_be_written_is_refused_before_anybody_is_asked(
    hub, tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("no folder")  # which root may not write into, either
    monkeypatch.setattr(prefetch, "look_up", lambda *arguments: pytest.fail("the Hub was asked"))
    done = CliRunner().invoke(command, [HUB_ID, "--to", str(tmp_path / "file/models")])
    assert (
        isinstance(done.exception, WorkshopError)
        and f"write into {tmp_path}/file" in done.exception.message
    )
    assert "--to" in done.exception.remedy and "WORKSHOP_HOME" not in done.exception.remedy


def test_a_full_disk_is_told_with_the_folder_to_change(tmp_path):
    full = prefetch.prefetch_hub.explain(
        HUB_ID, OSError(errno.ENOSPC, "No space left on device", str(tmp_path))
    )
    assert f"No space is left to write {tmp_path}" in full.message
    assert "--to" in full.remedy and "WORKSHOP_HOME" not in full.remedy


def test_a_quota_is_named_beside_what_it_leaves(hub, tmp_path, monkeypatch):
    quota = Quota("ada", 16 * 2**30, 20 * 2**30)
    monkeypatch.setattr(prefetch, "left_bytes", lambda path: quota.left_bytes)
    monkeypatch.setattr(prefetch, "quotas", lambda path: [quota])
    files = (prefetch.File("model.safetensors", 16_000_000_000),)
    with pytest.raises(
        WorkshopError, match=r"has 4 GB free \(the quota of ada is 20\.0 GiB, 16\.0 used\)"
    ):
        prefetch.refuse_small_disk(
            prefetch.Remote("meta-llama/Llama-3.1-8B", "main", files), tmp_path / "m"
        )


def test_no_network_says_where_to_run_it(monkeypatch, subtests):
    for endpoint in ["not an address", "ftp://x", "http://127.0.0.1:1"]:
        with subtests.test(endpoint):
            monkeypatch.setenv("HF_ENDPOINT", endpoint)
            with pytest.raises(WorkshopError, match="not reached, or broke off") as error:
                prefetch.look_up(HUB_ID)
            assert "login" in error.value.remedy


def test_offline_is_told_by_the_variable_that_says_so(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(WorkshopError, match="HF_HUB_OFFLINE"):
        prefetch.look_up(HUB_ID)


@pytest.mark.parametrize(
    ("page", "message"), [("all", "does not answer with a list"), ("files", "came damaged")]
)
def test_login_page_is_told_from_a_model(hub, tmp_path, page, message):
    hub.page = page
    with pytest.raises(WorkshopError, match=message) as caught:
        fetch(tmp_path / "Tiny-Llama")
    assert "login page" in caught.value.remedy


def test_signature_in_an_address_is_not_shown():
    shown = prefetch.prefetch_hub.explain(
        HUB_ID, RuntimeError("Client error '410' for url 'http://cdn/x?Signature=abc'")
    )
    assert "cdn" in shown.message and "abc" not in shown.message


def test_name_outside_the_folder_is_refused_before_the_first_byte(hub, tmp_path, subtests):
    for name in ["../x.json", "/tmp/x.json", "a/../../x.json", "a\n.json", 5]:
        with subtests.test(name):
            hub.extra_name = name
            with pytest.raises(WorkshopError, match="no name inside a folder") as caught:
                fetch(tmp_path / "models" / "Tiny-Llama")
            assert caught.value.message.isprintable() and not list(tmp_path.iterdir())


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("ab./\\:\0~ é"), max_size=12))
@example("a/..")
@example(" ")
def test_name_that_is_taken_stays_inside(name):
    if slurm_weights.stays_inside(name):
        inside = Path("/models/m")
        path = (inside / name).resolve()
        assert path.is_relative_to(inside) and path != inside


def test_index_that_names_files_elsewhere_is_refused(tmp_path, subtests):
    for weight_map in [{"a": "../../x.safetensors"}, {"a": 5}, {"a": ["x"]}, [], None, "x"]:
        with subtests.test(str(weight_map)):
            (tmp_path / slurm_weights.INDEX).write_text(json.dumps({"weight_map": weight_map}))
            with pytest.raises(WorkshopError, match="cannot be read"):
                prefetch.verify(tmp_path)


def run(tmp_path: Path, *options: str):
    """Run `workshop prefetch`; return what click kept of it."""
    done = CliRunner().invoke(command, [HUB_ID, "--to", str(tmp_path), *options])
    assert done.exit_code == 0, done.output
    return done


def test_python_files_are_left_out_and_named(hub, tmp_path):
    hub.files |= CODE
    done = run(tmp_path)
    assert not list(tmp_path.rglob("*.py"))
    assert all(
        part in done.output
        for part in ("2 Python files", "--trust-remote-code", "modeling_tiny.py")
    )


def test_python_files_come_where_they_are_asked_for(hub, tmp_path):
    hub.files |= CODE
    assert len(json.loads(run(tmp_path, "--trust-remote-code", "--json").stdout)["notes"]) == 1
    for name, text in CODE.items():
        assert (tmp_path / "Tiny-Llama" / name).read_bytes() == text


def test_model_whose_name_is_no_folder_is_refused(subtests):
    for name in ["lab/..", "../lab", "lab/.hidden", "./lab", "lab/x/..", "\ud800/x", "x" * 5000]:
        with subtests.test(ascii(name)), pytest.raises(BadInput):
            hub_id(name)


def test_names_of_scripts_and_of_the_catalog_have_hub_ids():
    assert hub_id(model_of("70b")) == "meta-llama/Llama-3.1-70B-Instruct"
    assert hub_id(model_of("lab/x")) == "lab/x"
    assert hub_id("llama-3.1-70b") == "meta-llama/Llama-3.1-70B"

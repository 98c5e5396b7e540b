"""prefetch: downloads go on, checks find what is broken, gates are explained, small disks are refused."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from hub_server import HUB_ID, model, safetensors, serve

from workshop.errors import WorkshopError
from workshop.servers.disk import Quota
from workshop.servers.slurm.recipes import model_of
from workshop.servers.weights import check as slurm_weights
from workshop.servers.weights import prefetch
from workshop.servers.weights.model_id import hub_id


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


def test_file_that_comes_damaged_is_not_kept(hub, tmp_path):
    remote = prefetch.look_up(HUB_ID)
    name = "model-00001-of-00002.safetensors"
    hub.files[name] = hub.files[name][:-1] + b"?"
    with pytest.raises(WorkshopError, match="came damaged"):
        prefetch.download(remote, tmp_path / "Tiny-Llama")
    assert not (tmp_path / "Tiny-Llama" / name).exists()


def test_command_says_what_is_there_and_who_sees_it(hub, tmp_path):
    from click.testing import CliRunner

    from workshop.cli.prefetch import command

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


@pytest.mark.parametrize(
    ("variable", "value", "file"),
    [
        ("HF_TOKEN_PATH", "$BASE/mine", "mine"),
        ("HF_HOME", "$BASE/hf", "hf/token"),
        ("XDG_CACHE_HOME", "$BASE/cache", "cache/huggingface/token"),
        ("HOME", "$BASE", ".cache/huggingface/token"),
    ],
)
def test_saved_token_is_found_where_huggingface_hub_puts_it(
    tmp_path, monkeypatch, variable, value, file
):
    """huggingface_hub 2.4, constants.py: HF_HOME, HF_TOKEN_PATH."""
    for name in ("HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BASE", str(tmp_path))
    monkeypatch.setenv(variable, value if variable != "HOME" else str(tmp_path))
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("hf_mine\n")
    assert prefetch.prefetch_hub.saved_token() == "hf_mine"


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
    from click.testing import CliRunner

    from workshop.cli.prefetch import command

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


def test_no_network_says_where_to_run_it(hub):
    hub.close()
    with pytest.raises(WorkshopError, match="not reached, or broke off") as error:
        prefetch.look_up(HUB_ID)
    assert "login" in error.value.remedy


def test_names_of_scripts_and_of_the_catalog_have_hub_ids():
    assert hub_id(model_of("70b")) == "meta-llama/Llama-3.1-70B-Instruct"
    assert hub_id(model_of("lab/x")) == "lab/x"
    assert hub_id("llama-3.1-70b") == "meta-llama/Llama-3.1-70B"

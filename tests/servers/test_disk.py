"""What a folder lies on, and how much may still be written there: disks, quotas of users, of groups, of Lustre."""

from __future__ import annotations

import getpass
from types import SimpleNamespace

import pytest

from workshop.lab import doctor
from workshop.servers.host import disk
from workshop.servers.host.disk import Quota
from workshop.servers.host.programs import Finished, run
from workshop.servers.slurm import doctor as slurm_doctor

GIB = 2**30
# quota(1) of Debian's quota 4.06, `quota -v -w -u` on an NFS home: sizes in KiB; `*` marks what is over the soft limit.
USER = """\
Disk quotas for user ada (uid 1000):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
nas:/export/home 16777216* 15728640 20971520   6days   81234       0       0
/dev/sdb1             4       0       0               1       0       0
"""
# `lfs quota -q -u ada /lustre`, as the Lustre manual prints it (25.5, "Enabling Quotas").
LUSTRE = "        /lustre     297     0  20971520       -     120       0       0       -\n"
WRAPPED = "/lustre/of/a/long/name\n                297*    0  [200]       -     120       0       0       -\n"


def mounted(device: str, mountpoint: str, fstype: str) -> SimpleNamespace:
    return SimpleNamespace(device=device, mountpoint=mountpoint, fstype=fstype)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return a function that puts tmp_path on a file system, and lets the tools of quotas say something."""

    def put(line: str, **outputs: str) -> None:
        mounts = [
            mounted(*mount.split()[:3]) for mount in ("/dev/vda / ext4 rw", line.format(tmp_path))
        ]
        monkeypatch.setattr("psutil.disk_partitions", lambda all: mounts)
        monkeypatch.setattr(disk, "free_bytes", lambda folder: 500 * GIB)

        def run(program: str, *args: str, within_s: float) -> Finished:
            kind = "user" if "-u" in args else "group"
            return Finished(0, outputs.get(f"{program}_{kind}", ""), "")

        monkeypatch.setattr(disk, "run", run)

    return put


def test_node_local_disk_is_told_from_a_shared_one(here, tmp_path):
    for line, sentence in [
        ("server:/export {} nfs4 rw 0 0", "network file system"),
        ("store@tcp:/fs {} lustre rw 0 0", "network file system"),
        ("box:/x {} fuse.newthing rw 0 0", "network file system"),
        ("/dev/nvme0n1 {} xfs rw 0 0", "will NOT see"),
        ("tmpfs {} tmpfs rw 0 0", "will NOT see"),
        ("thing {} newfs rw 0 0", "cannot be told"),
    ]:
        here(line)
        assert sentence in disk.who_sees(tmp_path / "models" / "x"), line


def test_a_quota_of_the_user_cuts_what_the_disk_has(here, tmp_path):
    here("nas:/export/home {} nfs4 rw 0 0", quota_user=USER)
    assert disk.quotas(tmp_path / "new") == [Quota(getpass.getuser(), 16 * GIB, 20 * GIB)]
    assert disk.left_bytes(tmp_path / "new") == 4 * GIB


def test_a_line_of_another_file_system_does_not_count(here, tmp_path):
    here("nas:/export/other {} nfs4 rw 0 0", quota_user=USER)
    assert disk.quotas(tmp_path) == [] and disk.left_bytes(tmp_path) == 500 * GIB


def test_no_limit_is_no_quota(here, tmp_path):
    here("/dev/sdb1 {} ext4 rw 0 0", quota_user=USER)
    assert disk.quotas(tmp_path) == []


def test_lustre_has_its_own_program_and_may_say_nothing(here, tmp_path):
    for output in ["", WRAPPED.replace("[200]", "-"), "Permission denied.", "a b c d"]:
        here("mgs@tcp:/fs {} lustre rw 0 0", lfs_user=LUSTRE, lfs_group=output, quota_user=USER)
        user = Quota(getpass.getuser(), 297 * 1024, 20 * GIB)
        assert disk.quotas(tmp_path) == [user], output
        assert disk.left_bytes(tmp_path) == 20 * GIB - 297 * 1024, output


def test_the_least_of_user_and_group_counts_and_over_the_limit_nothing_is_left(here, tmp_path):
    here("mgs@tcp:/fs {} lustre rw 0 0", lfs_user=LUSTRE, lfs_group=WRAPPED)
    assert [quota.limit_bytes for quota in disk.quotas(tmp_path)] == [20 * GIB, 200 * 1024]
    assert disk.left_bytes(tmp_path) == 0


def test_a_user_without_a_name_is_asked_for_by_number(monkeypatch):
    """As in a pod of OpenShift, whose users have numbers alone."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(disk.os, "getuid", lambda: 1000660000)
    assert disk._user() == "1000660000"


def test_a_program_that_is_not_there_fails_or_hangs_is_an_answer_in_words():
    assert run("no-such-program") == (1, "", "it cannot be run (No such file or directory)")
    assert run("false").complaint == "exit code 1"
    assert run("sleep", "60", within_s=0.1) == (124, "", "no answer within 0 s")
    done = run("sh", "-c", "echo out; echo first >&2; echo last >&2; exit 3")
    assert (done.code, done.out, done.complaint) == (3, "out\n", "last")


def test_doctor_says_that_a_gpu_environment_does_not_fit_a_small_quota(here, tmp_path, monkeypatch):
    here("nas:/export/home {} nfs4 rw 0 0", quota_user=USER)
    monkeypatch.setattr(doctor.sys, "prefix", str(tmp_path))
    (check,) = [check for check in doctor._system() if check.name == "Environment"]
    assert (
        check.state == doctor.NOTE
        and "20.0 GiB, 16.0 used" in check.found
        and "4.0 GiB left" in check.found
    )
    assert "conda env create -p" in check.remedy and "10 GiB" in check.remedy


@pytest.mark.parametrize(("exists", "state"), [(False, doctor.LACK), (True, doctor.NOTE)])
def test_doctor_sends_models_elsewhere_than_to_a_small_home(here, tmp_path, exists, state):
    here("nas:/export/home {} nfs4 rw 0 0", quota_user=USER)
    if exists:
        (tmp_path / "models").mkdir()
    check, *_ = slurm_doctor._folders({"WORKSHOP_MODELS": str(tmp_path / "models")})
    assert check.state == state and "20.0 GiB" in check.found and "prefetch" not in check.remedy


def test_doctor_names_a_glibc_that_is_too_old_for_the_wheels(monkeypatch):
    for libc, lacks in [(("glibc", "2.17"), True), (("glibc", "2.28"), False), (("", ""), False)]:
        monkeypatch.setattr(doctor.platform, "libc_ver", lambda libc=libc: libc)
        assert ("glibc" in [check.name for check in doctor._system()]) == lacks, libc


def test_doctor_compares_the_driver(monkeypatch):
    card = doctor.gpus.Gpu("NVIDIA H200", 140 * GIB, 0, "GPU-1")
    monkeypatch.setattr(doctor, "installed", lambda: ("vllm", "0.25.1"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for driver, state in (("570.124.06", doctor.LACK), ("580.159.04", doctor.OK)):
        look = doctor.gpus.Look((card,), "nvidia", driver)
        monkeypatch.setattr(doctor.gpus, "look", lambda look=look: look)
        checks = {check.name: check for check in doctor._gpus()}
        assert checks["Driver"].state == state, driver
        assert "NVIDIA H200 (140 GiB)" in checks["GPUs"].found


def test_doctor_quotes_a_driver_that_does_not_answer(monkeypatch):
    look = doctor.gpus.Look(maker="nvidia", problem="NVML: Driver/library version mismatch")
    monkeypatch.setattr(doctor.gpus, "look", lambda: look)
    (check,) = doctor._gpus()
    assert check.state == doctor.LACK and "version mismatch" in check.found


def test_disk_space_of_a_folder_that_is_not_there_yet(tmp_path):
    assert disk.free_bytes(tmp_path / "a" / "b" / "c") > 0

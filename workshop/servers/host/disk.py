"""Describe what a folder lies on: who else sees it, and how much this user may write there."""

import getpass
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from workshop.errors import WorkshopError
from workshop.servers.host.programs import run

GIB = 2**30  # not the planner's: pods have this module, and no catalog
LOG_BYTES = 64 * 2**20
ASK_S = 10.0  # a file server that is down does not answer
NETWORK = re.compile(
    r"nfs4?|lustre|gpfs|beegfs|ceph|cifs|smb3|afs|panfs|wekafs|orangefs|pvfs2|9p|vastfs|quobyte|"
    r"(fuse\.)?glusterfs|fuse\.(ceph|sshfs|weka)"
)
LOCAL = re.compile(r"ext[234]|xfs|btrfs|zfs|tmpfs|overlay|f2fs|vfat|apfs|hfs|ramfs|squashfs")


@dataclass(frozen=True)
class Quota:
    """The bytes that a user or a group may use on a file system, and those that are used."""

    whose: str
    used_bytes: int
    limit_bytes: int

    @property
    def left_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)

    def __str__(self) -> str:
        return (
            f"the quota of {self.whose} is {self.limit_bytes / GIB:.1f} GiB, "
            f"{self.used_bytes / GIB:.1f} used"
        )


def _there(path: Path) -> Path:
    """Return the path, or the nearest folder above it that is there."""
    # Path.exists raises where a folder above is closed.
    return next(place for place in (path, *path.parents) if os.path.exists(place))


def free_bytes(path: Path) -> int:
    """Return the free space where `path` is, or will be."""
    return shutil.disk_usage(_there(path)).free


def left_bytes(folder: Path) -> int:
    """Return how many bytes may still be written into a folder: of the disk, or of a quota."""
    left = free_bytes(folder)
    for quota in quotas(folder):
        left = min(left, quota.left_bytes)
    return left


def refuse_full(folder: Path, remedy: str) -> None:
    """Raise a WorkshopError if a server's log cannot be written into the folder."""
    free = left_bytes(folder)
    if free < LOG_BYTES:
        problem = (
            f"Only {free / 2**20:.0f} MiB are left on the disk of {folder}, too little for a log."
        )
        raise WorkshopError(problem, remedy)


def refuse_closed(folder: Path, remedy: str) -> None:
    """Raise a WorkshopError if nothing may be written into the folder, there or to be made."""
    place = _there(folder)
    if not os.access(place, os.W_OK | os.X_OK):
        raise WorkshopError(f"You may not write into {place}.", remedy)


def quotas(folder: Path) -> list[Quota]:
    """Return the quotas there, of this user and the folder's group, by `lfs quota` or quota(1)."""
    kind, mount, source = file_system(folder)
    quotas: list[Quota] = []
    for flag, name in (("-u", _user()), ("-g", _group(folder))):
        if kind == "lustre":
            line = run("lfs", "quota", "-q", flag, name, mount, within_s=ASK_S).out
        else:  # its exit code says whether a quota is exceeded
            text = run("quota", "-v", "-w", flag, name, within_s=ASK_S).out
            line = _line_of((source, mount), text)
        # * over the limit, [] a part does not answer
        numbers = [word.strip("[]*") for word in line.split()[1:4]]
        if len(numbers) == 3 and all(map(str.isdigit, numbers)):
            used_kib, soft_kib, hard_kib = map(int, numbers)
            limit_kib = hard_kib or soft_kib
            if limit_kib:
                quotas.append(Quota(name, used_kib * 1024, limit_kib * 1024))
    return quotas


def _line_of(names: tuple[str, str], text: str) -> str:
    """Return the first line that begins with one of the names; '' if none does."""
    for line in text.splitlines():
        first = line.split()[:1]
        if first and first[0] in names:
            return line
    return ""


def _user() -> str:
    with suppress(KeyError, OSError):  # a user without a name: a container of OpenShift
        return getpass.getuser()
    return str(os.getuid())


def _group(folder: Path) -> str:
    """Return the group that new files in the folder count for: the folder's, as projects set it."""
    folder = _there(folder)
    with suppress(KeyError, NotImplementedError):  # a group without a name; Windows
        return folder.group()
    return str(folder.stat().st_gid)


def who_sees(folder: Path) -> str:
    """Return one sentence: will all nodes see this folder?"""
    kind, mount, source = file_system(folder)
    where = f"{folder} is on {mount} ({kind})"
    if NETWORK.fullmatch(kind) or (kind.startswith("fuse") and ":" in source):
        return f"{where}, a network file system: the nodes that mount it see the model."
    if LOCAL.fullmatch(kind):
        return (
            f"{where}, a disk of this machine alone: other nodes will NOT see the model, "
            "unless they have the same folder from elsewhere. "
            "Put it on the cluster's shared file system, or copy it to every node."
        )
    return f"{where}: whether other nodes see it cannot be told from here. Try: srun ls {folder}"


def file_system(folder: Path) -> tuple[str, str, str]:
    """Return (type, mount point, source) of the file system that holds the folder."""
    best = ("unknown", "/", "")
    path = folder.resolve()
    with suppress(OSError):
        for partition in psutil.disk_partitions(all=True):
            mount = partition.mountpoint
            inside = path.is_relative_to(mount) and len(mount) >= len(best[1])
            if inside and partition.fstype != "autofs":
                best = partition.fstype, mount, partition.device
    return best

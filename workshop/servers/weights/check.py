"""The weights in a model's folder: their shards and bytes, and whether all of them are there. Standard library only."""

import json
import os
import struct
from pathlib import Path

from workshop.errors import WorkshopError

INDEX = "model.safetensors.index.json"
# of a file: file systems take 255 bytes a part, and .part files need some
LONGEST_NAME, LONGEST_PART = 1000, 200
HEADER_LIMIT_BYTES = 100 * 2**20  # safetensors' own limit


class Damaged(WorkshopError):
    """A file of the weights is cut short, or holds something else."""


def stays_inside(name: object) -> bool:
    """Return whether a file of that name, said by an index or a mirror, lies in the model's folder, on every system."""
    return (
        isinstance(name, str)
        and name.isprintable()
        and not set(name) & set("\\:")
        and len(name) <= LONGEST_NAME
        and all(
            part not in ("", ".", "..") and len(part.encode()) <= LONGEST_PART
            for part in name.split("/")
        )
    )


def index(folder: Path) -> dict[str, set[str]]:
    """Return {shard: the tensors that the folder's index puts there}; {} without an index."""
    path, held = folder / INDEX, {}
    if path.is_file():
        try:
            for tensor, shard in json.loads(path.read_text(encoding="utf-8"))["weight_map"].items():
                held.setdefault(shard, set()).add(tensor)
            if not held or not all(map(stays_inside, held)):
                raise ValueError(held)
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError, OSError):
            remedy = f"Download it again: workshop prefetch MODEL --to {folder.parent}"
            raise Damaged(f"The index {path} cannot be read.", remedy) from None
    return held


def shards(folder: Path) -> list[Path]:
    """Return the weight files that the index names; without an index, those that are there."""
    if named := index(folder):
        return [folder / name for name in sorted(named)]
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))


def weight_bytes(folder: Path) -> int:
    """Return the bytes of the weight files that are there (0 if there are none)."""
    return (
        sum(path.stat().st_size for path in shards(folder) if path.is_file())
        if folder.is_dir()
        else 0
    )


def missing(folder: Path) -> list[str]:
    """Return the names of the shards that the index names and the folder lacks."""
    return [path.name for path in shards(folder) if not path.is_file()]


def unreadable(folder: Path) -> list[str]:
    """Return the names of files that are there and that this user may not read (a download by a colleague)."""
    files = [*shards(folder), *folder.glob("*.json")]
    return [path.name for path in files if path.is_file() and not os.access(path, os.R_OK)]


def tensors(path: Path) -> set[str]:
    """Return the names of the tensors in a safetensors file; a WorkshopError where it is cut off, too long, or none."""
    if not path.is_file():  # a pipe would be waited for
        raise Damaged(f"{path.name} is no regular file.", "Download it again.")
    size = path.stat().st_size
    with path.open("rb") as file:
        length = (
            struct.unpack("<Q", head)[0]
            if len(head := file.read(8)) == 8
            else HEADER_LIMIT_BYTES + 1
        )
        if length > HEADER_LIMIT_BYTES or length + 8 > size:
            raise Damaged(
                f"{path.name} is no whole safetensors file ({size} bytes).", "Download it again."
            )
        try:
            header = json.loads(file.read(length))
            held = {
                name: entry["data_offsets"][1]
                for name, entry in header.items()
                if name != "__metadata__"
            }
            expected = 8 + length + max(held.values(), default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            raise Damaged(f"The header of {path.name} is damaged.", "Download it again.") from None
    if size != expected:
        raise Damaged(
            f"{path.name} has {size} bytes, and its header promises {expected}.",
            "Download it again.",
        )
    return set(held)

"""The weights in a model's folder: their shards and bytes, and whether all of them are there. Standard library only."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

from workshop.errors import WorkshopError

INDEX = "model.safetensors.index.json"
LONGEST_NAME, LONGEST_PART = 1000, 200  # of a file: file systems take 255 bytes a part, and .part files need some
HEADER_LIMIT_BYTES = 100 * 2**20  # safetensors' own limit


def stays_inside(name: object) -> bool:
    """Return whether a file of that name, said by an index or a mirror, lies in the model's folder, on every system."""
    return (
        isinstance(name, str)
        and name.isprintable()
        and not set(name) & set("\\:")
        and len(name) <= LONGEST_NAME
        and all(part not in ("", ".", "..") and len(part.encode()) <= LONGEST_PART for part in name.split("/"))
    )


def shards(folder: Path) -> list[Path]:
    """Return the weight files that the index names; without an index, those that are there."""
    index = folder / INDEX
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            if not all(map(stays_inside, names)):
                raise ValueError(names)
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError, OSError):
            raise WorkshopError(f"The index {index} cannot be read.", f"Download it again: {again(folder)}") from None
        return [folder / name for name in names]
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))


def weight_bytes(folder: Path) -> int:
    """Return the bytes of the weight files that are there (0 if there are none)."""
    return sum(path.stat().st_size for path in shards(folder) if path.is_file()) if folder.is_dir() else 0


def missing(folder: Path) -> list[str]:
    """Return the names of the shards that the index names and the folder lacks."""
    return [path.name for path in shards(folder) if not path.is_file()]


def unreadable(folder: Path) -> list[str]:
    """Return the names of files that are there and that this user may not read (a download by a colleague)."""
    files = [*shards(folder), *folder.glob("*.json")]
    return [path.name for path in files if path.is_file() and not os.access(path, os.R_OK)]


def again(folder: Path) -> str:
    """Return the command that completes a download."""
    return f"workshop prefetch MODEL --to {folder.parent}"


def tensors(path: Path) -> set[str]:
    """Return the names of the tensors in a safetensors file, having checked that the file is whole.

    Raises:
        WorkshopError: the file is cut off, too long, or no safetensors file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = struct.unpack("<Q", head)[0] if len(head := file.read(8)) == 8 else HEADER_LIMIT_BYTES + 1
        if length > HEADER_LIMIT_BYTES or length + 8 > size:
            raise WorkshopError(f"{path.name} is no whole safetensors file ({size} bytes).", "Download it again.")
        try:
            header = json.loads(file.read(length))
            held = {name: entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"}
            expected = 8 + length + max(held.values(), default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            raise WorkshopError(f"The header of {path.name} is damaged.", "Download it again.") from None
    if size != expected:
        raise WorkshopError(f"{path.name} has {size} bytes, and its header promises {expected}.", "Download it again.")
    return set(held)

"""The weights in a model's folder: their shards, their bytes, and whether all are there.

Standard library only.
"""

import json
import os
import struct
from pathlib import Path

from workshop.errors import WorkshopError

INDEX = "model.safetensors.index.json"
# the same weights again, in other formats
OTHER_FORMATS = (
    "original/*", "*.gguf", "*.onnx", "onnx/*", "*.pth", "*.msgpack", "*.h5", "consolidated*"
)  # fmt: skip
HEADER_LIMIT_BYTES = 100 * 2**20  # safetensors' own limit


class Damaged(WorkshopError):
    """A file of the weights is cut off, or contains something else."""


def stays_inside(name: object) -> bool:
    """Return True if a file name, which an index or a mirror gives, lies in the model's folder."""
    if not isinstance(name, str) or not name.isprintable() or "\\" in name:
        return False
    return not {"", ".", ".."} & set(name.split("/"))


def index(folder: Path) -> dict[str, set[str]]:
    """Return {shard: the tensors that the folder's index puts there}; {} without an index.

    Raises Damaged: the index cannot be read, or names files outside the folder.
    """
    path = folder / INDEX
    if not path.is_file():
        return {}
    tensors_of: dict[str, set[str]] = {}
    try:
        for tensor, shard in json.loads(path.read_text(encoding="utf-8"))["weight_map"].items():
            tensors_of.setdefault(shard, set()).add(tensor)
        if not tensors_of or not all(stays_inside(shard) for shard in tensors_of):
            raise ValueError(tensors_of)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError, OSError):
        remedy = f"Download it again: workshop prefetch MODEL --to {folder.parent}"
        raise Damaged(f"The index {path} cannot be read.", remedy) from None
    return tensors_of


def shards(folder: Path) -> list[Path]:
    """Return the weight files that the index names; without an index, those that are there."""
    names = sorted(index(folder))
    if names:
        return [folder / name for name in names]
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))


def weight_bytes(folder: Path) -> int:
    """Return the bytes of the weight files that are there (0 if there are none)."""
    if not folder.is_dir():
        return 0
    return sum(path.stat().st_size for path in shards(folder) if path.is_file())


def missing(folder: Path) -> list[str]:
    """Return the names of the shards that the index names and the folder does not have."""
    return [path.name for path in shards(folder) if not path.is_file()]


def unreadable(folder: Path) -> list[str]:
    """Return the names of files that this user may not read, as a colleague's download can be."""
    files = [*shards(folder), *folder.glob("*.json")]
    return [path.name for path in files if path.is_file() and not os.access(path, os.R_OK)]


def tensors(path: Path) -> set[str]:
    """Return the names of the tensors in a safetensors file.

    Raises Damaged: the file is cut off, too long, or no safetensors file.

    Source: the format's description (huggingface/safetensors): 8 bytes with the header's length, a
    JSON header, data.
    """
    if not path.is_file():  # reading a pipe would block
        raise Damaged(f"{path.name} is no regular file.", "Download it again.")
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = size  # too long, unless the file says another
        if len(start) == 8:
            length = struct.unpack("<Q", start)[0]
        if length > HEADER_LIMIT_BYTES or length + 8 > size:
            raise Damaged(
                f"{path.name} is no whole safetensors file ({size} bytes).", "Download it again."
            )
        text = file.read(length)
    ends: dict[str, int] = {}
    try:
        for name, entry in json.loads(text).items():
            if name != "__metadata__":
                ends[name] = entry["data_offsets"][1]
        expected = 8 + length + max(ends.values(), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise Damaged(f"The header of {path.name} is damaged.", "Download it again.") from None
    if size != expected:
        raise Damaged(
            f"{path.name} has {size} bytes, and its header promises {expected}.",
            "Download it again.",
        )
    return set(ends)

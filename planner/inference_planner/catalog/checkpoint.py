"""The checkpoint beside a config.json: its number of layers, and its size for an estimate."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.fields import json_object
from inference_planner.errors import BadInput
from inference_planner.files import as_object, open_regular

INDEX = "model.safetensors.index.json"
LAYER = re.compile(r"(.*?)\b(?:layers|h|blocks)\.(\d{1,4})\.")  # of a tensor's name
LARGEST_INDEX_BYTES = 64 << 20  # a hundred thousand experts' tensors have 14
LONGEST_NAME = 500  # characters of a tensor's name
LARGEST_BYTES = 1 << 50  # of a checkpoint
LARGEST_HEADER_BYTES = 100 << 20  # as the safetensors library has it
REMEDY = "Copy or download the file again."


def stored_bytes(folder: Path) -> int:
    """Return the bytes of the safetensors in a folder, by their index or headers; 0 without.

    Raises:
        BadInput: an index that is cut or says nothing, or a file whose header is.
    """
    return _index(folder)[0] or sum(map(_tensor_bytes, sorted(folder.glob("*.safetensors"))))


def _index(folder: Path) -> tuple[int, Mapping[str, Any]]:
    """Return (bytes, tensor → file) of the index in a folder; nothing where there is none."""
    file = folder / INDEX
    if not file.exists():
        return 0, {}
    index_data = json_object(file, LARGEST_INDEX_BYTES)
    about = as_object(index_data.get("metadata") or {})
    tensors = as_object(index_data.get("weight_map") or {})
    size: Any = None if about is None else about.get("total_size", 0)
    if type(size) not in (int, float) or not 0 <= size < LARGEST_BYTES or tensors is None:
        raise BadInput(
            f"{file} is garbled: it must have the size of all tensors, and the file of each.",
            REMEDY,
        )
    return int(size), tensors


def check_layers(model: ModelConfig, config: Path) -> None:
    """Raise BadInput where the index beside a config.json names fewer layers than it says, or more.

    An encoder may have more of them; layers that draft tokens (num_nextn_predict_layers) come after
    the last one.
    """
    counts: dict[str, int] = {}  # what stands before the layer's number -> layers
    tensors = [name for name in _index(config.parent)[1] if len(name) <= LONGEST_NAME]
    for match in filter(None, map(LAYER.match, tensors)):
        counts[match[1]] = max(counts.get(match[1], 0), int(match[2]) + 1)
    if not counts:
        return
    layer_count = model.num_hidden_layers
    draft_layers = model.raw.get("num_nextn_predict_layers")
    if type(draft_layers) is not int or draft_layers <= 0:
        draft_layers = 1
    most = layer_count + draft_layers
    index_layers = max(counts.values())
    if index_layers < layer_count or counts.get("model.", 0) > most:
        named = counts.get("model.") or index_layers
        raise BadInput(
            f"{config} says {layer_count} layers, and {INDEX} beside it names {named}.",
            "Give the config.json and the index of the same model, both whole.",
        )


def _tensor_bytes(file: Path) -> int:
    """Return the end of the last tensor, as the header has it.

    Source: the safetensors format (8 bytes of length, then JSON).
    """
    with open_regular(file, REMEDY) as opened:
        try:
            length = int.from_bytes(opened.read(8), "little")
            if length > LARGEST_HEADER_BYTES:
                raise ValueError("no header is so long")
            tensors = json.loads(opened.read(length))
            ends = [_end(tensor) for name, tensor in tensors.items() if name != "__metadata__"]
            return max(ends)
        except (
            OSError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            IndexError,
            RecursionError,
        ):
            problem = f"{file} is cut, or no safetensors file: its header cannot be read."
            raise BadInput(problem, REMEDY) from None


def _end(tensor: Mapping[str, Any]) -> int:
    """Return where a tensor ends in its file.

    Raises ValueError and others for what is no place in a file.
    """
    begin, end = tensor["data_offsets"]
    if type(begin) is not int or type(end) is not int or not 0 <= begin <= end < LARGEST_BYTES:
        raise ValueError("no place in a file")
    return end

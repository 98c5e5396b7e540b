"""Find the GPU that a log is of: by a line that names it, by its memory, or as it was given."""

import re
from contextlib import suppress

from inference_planner.catalog import GPU, list_gpus, load_gpu
from inference_planner.catalog.gpus import load_card

from workshop.engine.log.facts import EngineLog
from workshop.engine.reconcile_model import LONGEST_NAME
from workshop.errors import BadInput

ANOTHER_MEMORY = 0.05  # a total that is farther from a GPU's is another GPU's

SAME_MEMORY = 0.006  # GPUs of one kind report totals that differ by less than this share


def check_memory(log: EngineLog, card: GPU) -> None:
    """Refuse a GPU that has less memory than the log uses, or another amount than the log prints."""
    used = (log.weights_gib or 0.0) + max(0.0, log.available_kv_gib or 0.0)
    total = log.profile.get("total_gpu_memory_gib", 0.0)
    contradicted = total > 0 and abs(card.engine_gib / total - 1) > ANOTHER_MEMORY
    if not contradicted and used <= card.engine_gib * (1 + SAME_MEMORY):
        return
    cards = [load_gpu(name) for name in list_gpus()]
    if contradicted:
        names = _cards_of_size(total, ANOTHER_MEMORY)
        hint = f"with that memory there are: {', '.join(names) or 'none in the catalog'}"
    else:
        total = used
        names = [other.name for other in cards if other.engine_gib * (1 + SAME_MEMORY) >= used]
        hint = f"enough memory have: {', '.join(names) or 'none'}"
    raise BadInput(
        f"The log reports {total:.2f} GiB on a GPU, and {card.title} has {card.engine_gib:.2f} GiB.",
        f"Give the GPU of the run; {hint}.",
    )


def with_logged_memory(log: EngineLog, card: GPU, assumed: list[str]) -> GPU:
    """Return the GPU with the memory that the log prints, where drivers or platforms leave another amount."""
    total = log.profile.get("total_gpu_memory_gib")
    if not total or abs(card.engine_gib / total - 1) <= SAME_MEMORY:
        return card
    assumed.append(
        f"The log says {total:g} GiB of memory, and was compared with those instead of the {card.engine_gib:.2f} GiB "
        f"of {card.title}."
    )
    return load_card(card, total)


def _cards_of_size(total_gib: float, tolerance: float) -> list[str]:
    """Return the names of the catalog's GPUs whose memory is the same within a share."""
    names = []
    for name in list_gpus():
        if abs(load_gpu(name).engine_gib / total_gib - 1) <= tolerance:
            names.append(name)
    return names


def find_gpu(log: EngineLog, requested: str | GPU | None, assumed: list[str]) -> GPU:
    """Return the GPU of a log: the given one, one that a line names, or the one of the catalog with its memory.

    Raises BadInput: none of these is known.
    """
    if requested is not None:
        return load_gpu(requested)
    if log.gpu and (card := _gpu_by_name(log.gpu)):
        assumed.append(f"The GPU is a {log.gpu}, as a line of the log says.")
        return card
    total = log.profile.get("total_gpu_memory_gib")
    same = [
        card
        for card in map(load_gpu, list_gpus())
        if total and abs(card.engine_gib / total - 1) < SAME_MEMORY
    ]
    if len(same) == 1:
        assumed.append(f"The GPU was taken to be {same[0].title}, since the log says {total} GiB.")
        return same[0]
    if total and not _cards_of_size(total, ANOTHER_MEMORY):
        assumed.append(
            f"No GPU of the catalog has the {total:g} GiB that the log says, so memory alone was compared."
        )
        return load_card(None, total)
    hint = f"With {total} GiB it may be: {', '.join(card.name for card in same)}. " if same else ""
    raise BadInput("The log does not name its GPU (vLLM's logs do not).",
                   f"{hint}Add --gpu with one of: {', '.join(list_gpus())}.")  # fmt: skip


# Words behind a card's name that make it another card, with other memory or speed.
OTHER_CARD = {
    *("laptop", "mobile", "max-q", "maxq", "super", "ti", "d", "ada", "mig", "slice", "generation", "vgpu", "grid"),
    *("nvl", "pcie", "sxm2", "sxm3", "blackwell", "workstation", "server", "max", "xt", "xtx", "gre", "dual"),
}  # fmt: skip


def _gpu_by_name(name: str) -> GPU | None:
    """Return the catalog's GPU of a name; None if words are left that make it another one, as in "RTX 4090 Laptop GPU"."""
    plain = name[:LONGEST_NAME].removeprefix("NVIDIA").removeprefix("AMD").strip()
    parts = re.split(r"[\s_]+", plain)
    for count in range(len(parts), 0, -1):
        rest = parts[count:]
        if any(word.lower() in OTHER_CARD for word in rest):
            return None
        with suppress(BadInput):
            return load_gpu(" ".join(parts[:count]))
    return None

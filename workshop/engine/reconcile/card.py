"""Find the GPU that a log is of: by a line that names it, by its memory, or as it was given."""

import re
from contextlib import suppress

from inference_planner.catalog import GPU, list_gpus, load_gpu
from inference_planner.catalog.gpus import load_card

from workshop.engine.log.facts import EngineLog
from workshop.engine.reconcile.model import LONGEST_NAME, NotInLog, contradiction
from workshop.errors import BadInput

ANOTHER_MEMORY = 0.05  # a total that is farther from a GPU's is another GPU's

SAME_MEMORY = 0.006  # GPUs of one kind report totals that differ by less than this share


def check_memory(log: EngineLog, card: GPU) -> None:
    """Raise BadInput for a GPU with less memory than the log uses, or another size than it prints."""
    used_gib = (log.weights_gib or 0.0) + max(0.0, log.available_kv_gib or 0.0)
    total_gib = log.profile.get("total_gpu_memory_gib", 0.0)
    if total_gib > 0 and not _is_near(card.engine_gib, total_gib, ANOTHER_MEMORY):
        reported_gib = total_gib
        names = _names(_cards_of_size(total_gib, ANOTHER_MEMORY)) or "none in the catalog"
        hint = f"with that memory there are: {names}"
    elif used_gib > card.engine_gib * (1 + SAME_MEMORY):
        reported_gib = used_gib
        large = [card for card in _cards() if card.engine_gib * (1 + SAME_MEMORY) >= used_gib]
        names = _names(large) or "none"
        hint = f"enough memory have: {names}"
    else:
        return
    raise BadInput(
        f"The log reports {reported_gib:.2f} GiB on a GPU, "
        f"and {card.title} has {card.engine_gib:.2f} GiB.",
        f"Give the GPU of the run; {hint}.",
    )


def with_logged_memory(log: EngineLog, card: GPU, assumed: list[str]) -> GPU:
    """Return the GPU with the memory that the log prints: drivers leave different amounts."""
    total = log.profile.get("total_gpu_memory_gib")
    if not total or _is_near(card.engine_gib, total, SAME_MEMORY):
        return card
    assumed.append(
        f"The log says {total:g} GiB of memory, and was compared with those "
        f"instead of the {card.engine_gib:.2f} GiB of {card.title}."
    )
    return load_card(card, total)


def _cards() -> list[GPU]:
    return [load_gpu(name) for name in list_gpus()]


def _names(cards: list[GPU]) -> str:
    return ", ".join(card.name for card in cards)


def _is_near(gib: float, other_gib: float, share: float) -> bool:
    """Return True if one size differs from another by no more than a share."""
    return abs(gib / other_gib - 1) <= share


def _cards_of_size(total_gib: float, share: float) -> list[GPU]:
    return [card for card in _cards() if _is_near(card.engine_gib, total_gib, share)]


def find_gpu(
    log: EngineLog,
    requested: str | GPU | None,
    assumed: list[str],
    memory_gib: float | None = None,
) -> GPU:
    """Return the GPU of a log: the requested one, one that a line names, or one with its memory.

    Args:
        memory_gib: what the user says of the memory of one GPU, GiB.

    Raises NotInLog: none of these is known. Raises BadInput: the log says another memory.
    """
    if memory_gib is not None:
        _check_given_memory(log, memory_gib)
    if requested is not None:
        return load_card(requested, memory_gib)
    if log.gpu:
        card = _gpu_by_name(log.gpu)
        if card:
            assumed.append(f"The GPU is a {log.gpu}, as a line of the log says.")
            return load_card(card, memory_gib)
    if memory_gib is not None:
        return load_card(None, memory_gib)
    total = log.profile.get("total_gpu_memory_gib")
    same = _cards_of_size(total, SAME_MEMORY) if total else []
    same = [card for card in same if not card.is_slice] or same
    if len(same) == 1:
        assumed.append(f"The GPU was taken to be {same[0].title}, since the log says {total} GiB.")
        return same[0]
    if total and not _cards_of_size(total, ANOTHER_MEMORY):
        assumed.append(
            f"No GPU of the catalog has the {total:g} GiB that the log says, "
            "so memory alone was compared."
        )
        return load_card(None, total)
    remedy = "Add --gpu, such as h100, h200 or rtx-4090 (`workshop models --gpus` lists all)."
    if same:
        names = _names(same)
        remedy = f"With {total} GiB it may be: {names}. {remedy}"
    raise NotInLog("The log does not name its GPU (vLLM's logs do not).", remedy)


def _check_given_memory(log: EngineLog, memory_gib: float) -> None:
    total_gib = log.profile.get("total_gpu_memory_gib")
    if total_gib and not _is_near(memory_gib, total_gib, SAME_MEMORY):
        raise contradiction(
            "--gpu-memory", f"reports {total_gib:g} GiB on a GPU", f"{memory_gib:g}"
        )


# Words behind a card's name that make it another card, with other memory or speed.
OTHER_CARD = {
    *("laptop", "mobile", "max-q", "maxq", "super", "ti", "d", "ada", "mig", "slice"),
    *("generation", "vgpu", "grid", "nvl", "pcie", "sxm2", "sxm3", "blackwell", "workstation"),
    *("server", "max", "xt", "xtx", "gre", "dual"),
}  # fmt: skip


def _gpu_by_name(name: str) -> GPU | None:
    """Return the catalog's GPU of a name.

    None if further words make it another one, as in "RTX 4090 Laptop GPU".
    """
    plain = name[:LONGEST_NAME].removeprefix("NVIDIA").removeprefix("AMD").strip()
    parts = re.split(r"[\s_]+", plain)
    for count in range(len(parts), 0, -1):
        rest = parts[count:]
        if any(word.lower() in OTHER_CARD for word in rest):
            return None
        with suppress(BadInput):
            return load_gpu(" ".join(parts[:count]))
    return None

"""Judges of notebook 08's exercises that ask for more than a number. Their words: e08_elsewhere.toml."""

from __future__ import annotations

from workshop.learn import manifest
from workshop.learn.judging import not_a_number
from workshop.plan.machines import list_machines, offers

VM_MODEL, VM_LENGTH = "llama-3.3-70b", 8192
FOUR = (0.52, -0.35, 0.13, -1.44)  # four weights to be rounded
SCALE = 0.2
CODES = (3, -2, 1, -7)  # 0.52 / 0.2 = 2.6, -1.75, 0.65, -7.2


def faults(answer: object) -> str | None:
    if not isinstance(answer, list | tuple | set | frozenset):
        return f"give a list of names, of these: {', '.join(manifest.POLICIES)}"
    given, broken = list(answer), manifest.faults(manifest.spoiled())
    for name in given:
        if name not in manifest.POLICIES:
            return f"there is no policy {name!r}; choose from: {', '.join(manifest.POLICIES)}"
        if name not in broken:
            return f"{name!r} is not broken here: {manifest.POLICIES[name].words}"
    missing = [name for name in broken if name not in given]
    if missing:
        return f"{len(set(given))} of {len(broken)} found; look again whether {manifest.POLICIES[missing[0]].words}"
    return None


def too_small() -> set[str]:
    """Return the machines of the catalogue that do not hold the exercise's model."""
    return {o.machine.name for o in offers(VM_MODEL, max_model_len=VM_LENGTH) if not o.fits}


def machines(answer: object) -> str | None:
    if not isinstance(answer, list | tuple | set | frozenset):
        return "give the names in a list or set"
    given, known = set(answer), {m.name: m for m in list_machines()}
    for name in sorted(map(str, given)):
        if name not in known:
            return f"there is no machine {name!r} in the table"
        if name not in too_small():
            return f"{name} does hold it: {known[name].gpus} × {known[name].gpu}"
    missing = len(too_small() - given)
    return f"{missing} more cannot hold it: weights of 131.4 GiB, before any KV cache" if missing else None


def codes(answer: object) -> str | None:
    if not isinstance(answer, list | tuple) or any(not_a_number(code) for code in answer):
        return "give four whole numbers"
    given = tuple(answer)
    if len(given) != len(CODES):
        return f"give {len(CODES)} codes, one for each weight"
    if given == CODES:
        return None
    if any(isinstance(code, float) for code in given):
        return "a code is a whole number: the weight divided by the scale, rounded"
    if given == tuple(int(w / SCALE) for w in FOUR):
        return "round to the nearest whole number instead of cutting off"
    if any(not -8 <= code <= 7 for code in given):
        return "four bits have the codes from -8 to 7 only"
    wrong = next(n for n, (a, b) in enumerate(zip(given, CODES, strict=True)) if a != b)
    return f"{FOUR[wrong]} / {SCALE} is {FOUR[wrong] / SCALE:.2f}, and the nearest whole number is not {given[wrong]}"

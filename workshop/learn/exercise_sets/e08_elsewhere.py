"""Exercises of notebook 08: other places, fewer bits, other models."""

from __future__ import annotations

from collections.abc import Iterable

from workshop.learn.exercises import Exercise, Test, close_to

VM_MODEL, VM_LENGTH = "llama-3.3-70b", 8192
FOUR = (0.52, -0.35, 0.13, -1.44)  # four weights to be rounded
SCALE = 0.2
CODES = (3, -2, 1, -7)  # 0.52 / 0.2 = 2.6, -1.75, 0.65, -7.2


def _faults(answer: object) -> str | None:
    from workshop.learn import manifest

    if isinstance(answer, str) or not isinstance(answer, Iterable):
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
    from workshop.plan import machines

    return {o.machine.name for o in machines.offers(VM_MODEL, max_model_len=VM_LENGTH) if not o.fits}


def _machines(answer: object) -> str | None:
    from workshop.plan import machines

    if isinstance(answer, str) or not isinstance(answer, Iterable):
        return "give the names in a list or set"
    given, known = set(answer), {m.name: m for m in machines.list_machines()}
    for name in sorted(map(str, given)):
        if name not in known:
            return f"there is no machine {name!r} in the table"
        if name not in too_small():
            m = known[name]
            return f"{name} does hold it: {m.gpus} × {m.gpu}"
    missing = len(too_small() - given)
    return f"{missing} more cannot hold it: weights of 131.4 GiB, before any KV cache" if missing else None


def _codes(answer: object) -> str | None:
    try:
        given = tuple(int(code) if float(code) == int(code) else float(code) for code in answer)
    except (TypeError, ValueError):
        return "give four whole numbers"
    if len(given) != len(CODES):
        return f"give {len(CODES)} codes, one for each weight"
    if given == CODES:
        return None
    if given == tuple(round(w, 2) for w in FOUR) or any(isinstance(code, float) for code in given):
        return "a code is a whole number: the weight divided by the scale, rounded"
    if given == tuple(int(w / SCALE) for w in FOUR):
        return "round to the nearest whole number instead of cutting off"
    wrong = next(n for n, (a, b) in enumerate(zip(given, CODES, strict=True)) if a != b)
    return f"{FOUR[wrong]} / {SCALE} is {FOUR[wrong] / SCALE:.2f}, and the nearest whole number is not {given[wrong]}"


def _bits() -> Test:
    return close_to(
        4 + (16 + 4) / 128,
        rel=1e-6,
        unit="bits",
        near_misses={
            4: "each group of 128 also stores a scale and a zero point",
            4 + 16 / 128: "the zero point takes 4 bits more",
            4 + 16 + 4: "one scale and one zero point serve 128 weights",
            4 + 20 / 64: "the group has 128 weights",
        },
    )


EXERCISES = {
    "elsewhere.faults": Exercise(
        "The five mistakes of a manifest",
        _faults,
        (
            "One concerns the GPU, one time, one memory, one the disk, one who may ask.",
            "What a T4 lacks; how long 14.5 GB take to load; what two ranks share; 10Gi; a key that everybody reads.",
            '["dtype", "startup", "shm", "volume", "key"]',
        ),
    ),
    "elsewhere.disk": Exercise(
        "GB on disk of a 70.55 B model",
        close_to(
            141.1,
            rel=0.005,
            unit="GB",
            near_misses={
                131.4: "those are GiB; disks are sold in GB of 10**9 bytes",
                70.55: "bfloat16 takes two bytes a parameter",
                282.2: "bfloat16 takes two bytes a parameter, not four",
            },
        ),
        ("Parameters times two bytes.", "70.55e9 * 2 / 1e9"),
    ),
    "elsewhere.machines": Exercise(
        "Machines that do not hold Llama 3.3 70B",
        _machines,
        (
            "131.4 GiB of weights have to fit into 0.92 of the machine's GPU memory: more vLLM does not take unless told.",
            "Three machines of the table are too small: those with 59 and 79 GiB.",
        ),
    ),
    "elsewhere.codes": Exercise(
        "Codes of four weights",
        _codes,
        ("A code is the whole number nearest to weight / scale.", "0.52 / 0.2 = 2.6, so its code is 3."),
    ),
    "elsewhere.bits": Exercise(
        "Bits a weight with AWQ's groups of 128",
        _bits(),
        ("4 bits for the code, and a share of 16 + 4 bits for the group's scale and zero point.", "4 + (16 + 4) / 128"),
    ),
    "elsewhere.jamba": Exercise(
        "Bytes of KV cache that Jamba needs a token",
        close_to(
            16384,
            rel=1e-6,
            unit="bytes",
            near_misses={
                131072: "only 4 of its 32 layers attend; Mamba layers keep nothing a token",
                8192: "K and V, so twice that",
                65536: "8 KV heads, not 32",
                16: "those are KiB of 1,024 bytes",
            },
        ),
        ("Only the layers that attend keep K and V: 4 of 32.", "4 layers · 2 · 8 KV heads · 128 · 2 bytes"),
    ),
}

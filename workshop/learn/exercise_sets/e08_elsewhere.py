"""Exercises of notebook 08: other places, fewer bits, other models."""

from __future__ import annotations

from workshop.learn import manifest
from workshop.learn.judging import Exercise, close_to, exactly, not_a_number
from workshop.plan import machines

VM_MODEL, VM_LENGTH = "llama-3.3-70b", 8192
FOUR = (0.52, -0.35, 0.13, -1.44)  # four weights to be rounded
SCALE = 0.2
CODES = (3, -2, 1, -7)  # 0.52 / 0.2 = 2.6, -1.75, 0.65, -7.2


def _faults(answer: object) -> str | None:
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
    return {o.machine.name for o in machines.offers(VM_MODEL, max_model_len=VM_LENGTH) if not o.fits}


def _machines(answer: object) -> str | None:
    if not isinstance(answer, list | tuple | set | frozenset):
        return "give the names in a list or set"
    given, known = set(answer), {m.name: m for m in machines.list_machines()}
    for name in sorted(map(str, given)):
        if name not in known:
            return f"there is no machine {name!r} in the table"
        if name not in too_small():
            return f"{name} does hold it: {known[name].gpus} × {known[name].gpu}"
    missing = len(too_small() - given)
    return f"{missing} more cannot hold it: weights of 131.4 GiB, before any KV cache" if missing else None


def _codes(answer: object) -> str | None:
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


EXERCISES = {
    "elsewhere.faults": Exercise(
        "The five mistakes of a manifest",
        _faults,
        "One concerns the GPU, one time, one memory, one the disk, one who may ask.",
        "What a T4 lacks; how long 14.5 GB take to load; what two ranks share; 10Gi; a key that everybody reads.",
    ),
    "elsewhere.disk": Exercise(
        "GB on disk of a 70.55 B model",
        close_to(141.1, "GB", digits=3),
        "Parameters times two bytes.",
        "A billion parameters of two bytes each are 2 GB.",
        wrong={
            131.4: "those are GiB; disks are sold in GB of 10**9 bytes",
            70.55: "bfloat16 takes two bytes a parameter",
            282.2: "bfloat16 takes two bytes a parameter, not four",
            141.1e9: "that is in bytes; divide by 10**9",
            1128.8: "that is in gigabits",
        },
    ),
    "elsewhere.machines": Exercise(
        "Machines that do not hold Llama 3.3 70B",
        _machines,
        "131.4 GiB of weights have to fit into 0.92 of the machine's GPU memory: vLLM takes no more unless told.",
        "Compare 131.4 GiB with the column “GPU memory”. Three machines have clearly less.",
    ),
    "elsewhere.codes": Exercise(
        "Codes of four weights",
        _codes,
        "A code is the whole number nearest to weight / scale.",
        "0.52 / 0.2 is 2.6. Which whole number is nearest to that? The sign of a weight stays.",
    ),
    "elsewhere.bits": Exercise(
        "Bits a weight with AWQ's groups of 128",
        close_to(4 + (16 + 4) / 128, "bits", digits=3),
        "Each weight has its code, and a share of what its group stores once.",
        "A group stores 16 + 4 bits once. Over how many weights are they spread?",
        wrong={
            4: "each group of 128 also stores a scale and a zero point",
            4 + 16 / 128: "the zero point takes 4 bits more",
            4 + 16 + 4: "one scale and one zero point serve 128 weights",
            4 + 20 / 64: "the group has 128 weights",
            20 / 128: "that is what a group stores besides; the weight's own code has 4 bits",
        },
    ),
    "elsewhere.jamba": Exercise(
        "Bytes of KV cache that Jamba needs a token",
        exactly(16384, "bytes"),
        "Only the layers that attend keep K and V: 4 of 32.",
        "As in notebook 1: K and V, layers that attend, KV heads, numbers of a head, bytes of a number.",
        wrong={
            131072: "only 4 of its 32 layers attend; Mamba layers keep nothing a token",
            8192: "K and V, so twice that",
            65536: "8 KV heads, not 32",
            16: "those are KiB of 1,024 bytes",
            114688: "those are the Mamba layers: they keep nothing a token",
        },
    ),
}

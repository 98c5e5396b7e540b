from functools import cache

from inference_planner.answer.machines import list_machines, offers

from workshop.course.exercises.judging import called
from workshop.course.exercises.sets import texts
from workshop.course.topics import manifest

VM_MODEL, VM_LENGTH = "qwen3.5-122b-a10b", 8192
IDS = texts("e08_elsewhere")["elsewhere.ids"]["ids"]


def faults(answer: list | tuple | set | frozenset) -> str | None:
    broken = broken_policies()
    answer = [called(name, manifest.POLICIES) for name in answer]
    for name in answer:
        if name not in manifest.POLICIES:
            return f"there is no policy {name!r}; choose from: {', '.join(manifest.POLICIES)}"
        if name not in broken:
            return f"{name!r} is not broken here: {manifest.POLICIES[name]}"
    for name in broken:
        if name not in answer:
            count = f"{len(set(answer))} of {len(broken)} found"
            return f"{count}; look again whether {manifest.POLICIES[name]}"
    return None


@cache
def broken_policies() -> tuple[str, ...]:
    """Return the policies that the exercise's manifests break."""
    return tuple(manifest.faults(manifest.spoiled()))


@cache
def too_small() -> frozenset[str]:
    """Return the machines of the catalog that do not hold the exercise's model."""
    names = set()
    for offer in offers(VM_MODEL, max_model_len=VM_LENGTH):
        if not offer.fits:
            names.add(offer.machine.name)
    return frozenset(names)


def machines(answer: list | tuple | set | frozenset) -> str | None:
    names = set(answer)
    by_name = {machine.name: machine for machine in list_machines()}
    for name in sorted(map(str, names)):
        if name not in by_name:
            return f"there is no machine {name!r} in the table"
        if name not in too_small():
            return f"{name} does hold it: {by_name[name].gpus} × {by_name[name].gpu}"
    missing = len(too_small() - names)
    if missing:
        return f"{missing} more cannot hold it: weights of 228.4 GiB, before any KV cache"
    return None


def ids(answer: list | tuple | set | frozenset) -> str | None:
    answer = [called(str(name), IDS) for name in answer]
    for name in answer:
        if name not in IDS:
            return f"there is no {name!r} here; choose from: {', '.join(IDS)}"
        if IDS[name]:
            return f"{name} may stay: {IDS[name]}"
    missing = 0
    for name, why in IDS.items():
        if not why and name not in answer:
            missing += 1
    if missing:
        return f"{missing} more must go: it names a number, too"
    return None

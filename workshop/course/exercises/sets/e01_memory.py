from dataclasses import fields

from workshop.course.exercises.judging import not_a_number
from workshop.course.widgets.memory.case import MemoryCase, memory

GPU_MEMORY_GB = {"H100": 80, "A100": 40}
EASIER = {"requests": "fewer requests", "context": "a shorter context", "model": "another model"}
# Where the sliders stand when the exercise begins.
TIGHT = {"model": "llama-3.1-70b", "gpu": "h200", "gpus": 4, "context": 131072, "requests": 16}


def gpus_405b(answer: dict) -> str | None:
    for name, memory_gb in GPU_MEMORY_GB.items():
        number, exact = answer[name], 810 / memory_gb
        problem = not_a_number(number, "GPUs")
        if problem:
            return f"{name}: {problem}"
        if number == int(exact):
            return f"{number} {name}s hold {number * memory_gb} GB, and 810 GB are needed: round up"
        if number != int(number):
            return f"there is no part of a GPU: {number:g} {name}s cannot be bought"
        if number != int(exact) + 1:
            verdict = "too few"
            if number > exact:
                verdict = "fewer are enough"
            room = f"{number} {name}s have {number * memory_gb:,} GB"
            return f"{room}; the weights are 810 GB: {verdict}"
    return None


def one_change(answer: object) -> str | None:
    answer = getattr(answer, "case", answer)  # of the sliders themselves
    if not isinstance(answer, MemoryCase):
        return "give sliders.case: what the controls say"
    start = MemoryCase(**TIGHT)
    changed = []
    for field in fields(MemoryCase):
        if getattr(answer, field.name) != getattr(start, field.name):
            changed.append(field.name)
    if not changed:
        return "nothing is changed yet: some of the 16 requests have to wait"
    if len(changed) > 1:
        return f"these are {len(changed)} changes ({', '.join(changed)}); one is enough"
    if changed[0] in EASIER:
        wanted = "16 requests of 131,072 tokens to this model are wanted"
        return f"{EASIER[changed[0]]} would do, but {wanted}"
    result = memory(answer)
    if result.state == "fits":
        return None
    return f"with that change {result.max_concurrency:.1f} requests fit, not 16"

import json
from collections import Counter
from pathlib import Path

from workshop.course.exercise_sets import words
from workshop.course.judging import SHAPELESS, is_number, not_a_number, single

COUNTED = words("e07_offline_batching")["offline.once"]["counted"]


def once(path: str | Path, told: dict) -> str | None:
    ids = Counter(json.loads(line)["custom_id"] for line in Path(path).read_text().splitlines())
    expected = {
        "lines": sum(ids.values()),
        "different": len(ids),
        "twice": sum(count > 1 for count in ids.values()),
    }
    if missing := [key for key in expected if key not in told]:
        return f"the dict needs {', '.join(missing)}"
    if extra := set(told) - set(expected):
        return f"leave {', '.join(sorted(map(str, extra)))} out: the dict has {', '.join(expected)}"
    wrong = [key for key in expected if told[key] != expected[key]]
    return f"{wrong[0]} is not {told[wrong[0]]!r}: count {COUNTED[wrong[0]]}" if wrong else None


def left(rows: object, lines: object, told: object) -> str | None:
    rows, lines, told = single(rows), single(lines), single(told)
    if problem := not_a_number(told, "rows"):
        return problem
    if not is_number(rows) or not is_number(lines):
        return SHAPELESS
    wrong = {
        0: "the first run was killed before its end: some rows have no answer yet",
        rows: "that would ask everything again; what has an answer on disk is not asked",
        lines: "those have their answer already; the second run asks for the rest",
    }
    otherwise = f"there are {rows} rows, and {lines} already have their answer on disk"
    return None if told == rows - lines else wrong.get(told, otherwise)


def common(frame: dict, counts: dict) -> str | None:
    expected = dict(Counter(text.split()[0] for text in frame["text"] if text.split()))
    if counts == expected:
        return None
    if not all(isinstance(count, int | float) for count in counts.values()):
        return "a word's value is a number: how often it came"
    if sum(counts.values()) != sum(expected.values()):
        return f"the counts add up to {sum(counts.values())}; there are {sum(expected.values())} answers"
    if "" in counts:
        return "the texts begin with a space, so split(' ') makes an empty first piece: split() without ' ' does not"
    if all(len(str(word)) == 1 for word in counts):
        return "those are first characters: split each text before you take the first piece"
    return "the words differ: split each text at its spaces, and take the first piece"

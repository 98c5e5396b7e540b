import json
from collections import Counter
from pathlib import Path

from workshop.course.exercises.judging import SHAPELESS, is_number, not_a_number
from workshop.course.exercises.sets import texts

COUNTED = texts("e07_offline_batching")["offline.once"]["counted"]


def once(path: str | Path, told: dict) -> str | None:
    ids: Counter[str] = Counter()
    for line in Path(path).read_text().splitlines():
        ids[json.loads(line)["custom_id"]] += 1
    twice = 0
    for count in ids.values():
        if count > 1:
            twice += 1
    expected = {"lines": sum(ids.values()), "different": len(ids), "twice": twice}
    missing = [key for key in expected if key not in told]
    if missing:
        return f"the dict needs {', '.join(missing)}"
    extra = set(told) - set(expected)
    if extra:
        return f"leave {', '.join(sorted(map(str, extra)))} out: the dict has {', '.join(expected)}"
    for key, count in expected.items():
        if told[key] != count:
            return f"{key} is not {told[key]!r}: count {COUNTED[key]}"
    return _unfinished(Path(path), expected["lines"])


def _unfinished(output: Path, lines: int) -> str | None:
    """Say that a batch left rows without an answer; its record beside the output has their number."""
    record = output.with_name(f"{output.name}.meta.json")
    if not record.exists():
        return None
    rows = json.loads(record.read_text())["input"]["rows"]
    if lines == rows:
        return None
    return (
        f"you counted rightly, but the input has {rows} rows and this file {lines} lines: "
        "run the batch again (it goes on), and count once more"
    )


def left(rows: object, lines: object, told: object) -> str | None:
    problem = not_a_number(told, "rows")
    if problem:
        return problem
    if not is_number(rows) or not is_number(lines):
        return SHAPELESS
    if told == rows - lines:
        return None
    wrong = {
        0: "the first run was killed before its end: some rows have no answer yet",
        rows: "that would ask everything again; what has an answer on disk is not asked",
        lines: "those have their answer already; the second run asks for the rest",
    }
    otherwise = f"there are {rows} rows, and {lines} already have their answer on disk"
    return wrong.get(told, otherwise)


def common(frame: dict, counts: dict) -> str | None:
    expected: Counter[str] = Counter()
    for text in frame["text"]:
        if text.split():
            expected[text.split()[0]] += 1
    if counts == expected:
        return None
    if not all(isinstance(count, int | float) for count in counts.values()):
        return "a word's value is a number: how often it came"
    counted, answers = sum(counts.values()), sum(expected.values())
    if counted != answers:
        return f"the counts add up to {counted}; there are {answers} answers"
    if "" in counts:
        return (
            "the texts begin with a space, so split(' ') makes an empty first piece: "
            "split() without ' ' does not"
        )
    if all(len(str(word)) == 1 for word in counts):
        return "those are first characters: split each text before you take the first piece"
    return "the words differ: split each text at its spaces, and take the first piece"

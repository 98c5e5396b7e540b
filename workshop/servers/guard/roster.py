"""Gives each name of a class list a key: a CSV of names in, a private CSV of keys out."""

import csv
import io
import re
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path

from workshop import files
from workshop.errors import BadInput
from workshop.servers.guard import keys
from workshop.servers.home import write_private

# Heads of the column that says who somebody is; the first of them that is there counts.
COLUMNS = ("learner", "login", "username", "user", "email", "e-mail", "mail", "name", "student")
HEAD = ("name", "learner", "api_key")
MAX_BYTES = 4 * 2**20
MAX_NAMES = 5000
_REPLACED = re.compile(r"[^A-Za-z0-9._@-]+")


@dataclass
class Result:
    """The result of a roster: the learners by what happened to their keys."""

    output: Path
    new: list[str] = field(default_factory=list)  # they got a key
    unchanged: list[str] = field(default_factory=list)  # they had one
    elsewhere: list[str] = field(default_factory=list)  # they have a key, which is not in `output`
    revoked: list[str] = field(default_factory=list)  # they have none any more


def read_names(path: str | Path) -> list[str]:
    """Return the names of a class list: a CSV with a head that names the column, or a name a line.

    Raises BadInput: the file cannot be read, or holds no names, or one name twice.
    """
    text = files.read_text(Path(path), MAX_BYTES).removeprefix("\ufeff")
    rows = [row for row in csv.reader(io.StringIO(text), _dialect(text)) if any(row)]
    column = 0
    if rows:
        head = [cell.strip().lower() for cell in rows[0]]
        for name in COLUMNS:
            if name in head:
                column = head.index(name)
                rows = rows[1:]
                break
    names = []
    for number, row in enumerate(rows, 1):
        if column >= len(row) or not row[column].strip():
            raise BadInput(f"{path}: row {number} has no name.", "Give each row one, or remove it.")
        names.append(" ".join(row[column].split()))
    if not names:
        raise BadInput(
            f"{path} holds no name.", "Give a CSV with the column name, or a name a line."
        )
    if len(names) > MAX_NAMES:
        raise BadInput(f"{path} holds {len(names):,} names.", f"{MAX_NAMES:,} are allowed.")
    return names


def _dialect(text: str) -> type[csv.Dialect]:
    """Return how the first line separates its columns: by commas, semicolons or tabs."""
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)

    class Dialect(csv.excel):
        delimiter = separator

    return Dialect


def learner_of(name: str) -> str:
    """Return the name under which a key is kept: without accents, and with a dot for each space.

    Raises BadInput: nothing of it can stand in such a name.
    """
    plain = unicodedata.normalize("NFKD", name.replace("ß", "ss"))
    plain = "".join(letter for letter in plain if not unicodedata.combining(letter))
    learner = _REPLACED.sub(".", plain).strip(".")
    learner = learner.lstrip("._-@")[:64]
    if not keys.NAME.fullmatch(learner):
        remedy = "Write it with letters from a to z, or add a column learner with such names."
        raise BadInput(f"{name!r} cannot be a learner's name.", remedy)
    return learner


def add_keys(roster: str | Path, output: Path) -> Result:
    """Give everybody in a class list a key who has none, and write them to `output` (0600).

    Running it again changes nothing for those who have one. Keys that were revoked stay so.

    Raises BadInput: two names are the same learner, or `output` is no file of such keys.
    """
    names_by_learner: dict[str, str] = {}
    for name in read_names(roster):
        learner = learner_of(name)
        if learner in names_by_learner:
            first = names_by_learner[learner]
            remedy = "Add a column learner with a name of its own for each."
            raise BadInput(f"{first!r} and {name!r} are both the learner {learner}.", remedy)
        names_by_learner[learner] = name
    if output.exists() and output.samefile(roster):
        raise BadInput(f"{output} is the roster itself.", "Give another --to.")
    rows = _read_output(output)
    result = Result(output)

    def write(new_keys: dict[str, str]) -> None:
        for learner, key in new_keys.items():
            rows[learner] = (names_by_learner[learner], key)
            result.new.append(learner)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(HEAD)
        for learner, (name, key) in rows.items():
            writer.writerow([name, learner, key])
        write_private(output, text.getvalue(), sync=True)

    states = keys.add_missing(list(names_by_learner), write)
    for learner, digest in states.items():
        if digest is None:
            result.revoked.append(learner)
        elif learner in rows and keys.is_key(rows[learner][1], digest):
            result.unchanged.append(learner)
        else:
            result.elsewhere.append(learner)
    return result


def _read_output(output: Path) -> dict[str, tuple[str, str]]:
    """Return {learner: (name, key)} of an earlier run; {} if there is none.

    Raises BadInput: it is another file.
    """
    if not output.exists():
        return {}
    lines = list(csv.reader(io.StringIO(files.read_text(output, MAX_BYTES))))
    if not lines or tuple(lines[0]) != HEAD or any(len(line) != len(HEAD) for line in lines):
        raise BadInput(f"{output} is there, and no file of keys.", "Give another --to.")
    return {learner: (name, key) for name, learner, key in lines[1:]}

"""Record the table of `workshop models`: every model of the catalog on every kind of GPU.

python docs/hardware.py          (again after a change of the catalog or of a formula; 10 seconds)
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from inference_planner.tables.hardware import RECORD, HardwarePlace, HardwareRow, table


def record_text(rows: Iterable[HardwareRow]) -> str:
    """Return the text of the record: JSON, with one line a model."""
    lines: list[str] = []
    for row in rows:
        places = [_recorded(place) for place in row.places]
        lines.append(json.dumps({**row.__dict__, "places": places}, ensure_ascii=False))
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _recorded(place: HardwarePlace) -> dict[str, Any]:
    """Return the fields of a place that say something, without the plan itself."""
    return {name: value for name, value in place.__dict__.items() if value and name != "plan"}


if __name__ == "__main__":
    RECORD.write_text(record_text(table()), encoding="utf-8")

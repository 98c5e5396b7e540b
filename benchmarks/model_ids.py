"""Count how many Hub ids of a list the planner knows, and can plan without a network.

    python benchmarks/model_ids.py IDS.txt
    python benchmarks/model_ids.py IDS.txt --gpu h200

The file has one id a line. An id is resolved if the catalog has it, or its name is derived from a
model there; it is planned if a plan on this GPU follows, whether it fits or not. The others are
listed by the beginning of their names, each with the sentence of the planner.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

# the planner of this checkout, whichever is installed
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "planner"))
from inference_planner import errors, load_model, plan


def outcome(model_id: str, gpu: str) -> tuple[str, str]:
    """Return whether an id is "planned", "resolved" or "refused", and why it is not planned."""
    try:
        model = load_model(model_id)
    except errors.PlannerError as error:
        return "refused", f"{error.message} {error.remedy}"
    try:
        result = plan(model, gpu)
    except errors.PlannerError as error:
        return "resolved", f"{error.message} {error.remedy}"
    return "planned", result.basis


def family(model_id: str) -> str:
    """Return the beginning of a model's name, up to its first digit."""
    name = model_id.rpartition("/")[2].lower()
    return re.split(r"[-_.]?\d", name)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("ids", type=Path)
    parser.add_argument("--gpu", default="b300")
    options = parser.parse_args()
    model_ids = options.ids.read_text(encoding="utf-8").split()
    outcomes = {model_id: outcome(model_id, options.gpu) for model_id in model_ids}
    counts = dict.fromkeys(("planned", "resolved", "refused"), 0)
    for result, _ in outcomes.values():
        counts[result] += 1
    print(f"{len(model_ids)} ids: {counts['planned']} planned", end=", ")
    print(f"{counts['resolved']} resolved and not planned, {counts['refused']} refused")
    for model_id in sorted(model_ids, key=lambda name: (family(name), name.lower())):
        result, reason = outcomes[model_id]
        if result != "planned":
            print(f"{family(model_id):24} {model_id}: {result}. {reason}")


if __name__ == "__main__":
    main()

"""Record what notebooks 13 and 14 show where vLLM is not installed: simulated rows, answers of engines, sessions.

python benchmarks/simulate/scale_out.py 13      (starts the two engines; three minutes on two quiet cores)
python benchmarks/simulate/scale_out.py 14      (starts the two servers; three minutes)
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from workshop.course.notebooks import nb13, nb14

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def run(name: str) -> None:
    """Run a notebook's cells."""
    os.environ["WORKSHOP_STRICT"] = "1"  # solutions run before any try
    names: dict = {}
    for cell in json.loads((NOTEBOOKS / name).read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)


def write(path: Path, recorded: dict[str, Any]) -> None:
    """Write the records of a notebook."""
    text = json.dumps(recorded, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def record_rows(module: Any) -> dict[str, Any]:
    """Let a notebook's module keep the rows that it simulates; return where they are kept."""
    rows: dict[str, Any] = {}
    simulated = module.simulated

    def keeping(model, gpu, load, **options):
        row = simulated(model, gpu, load, **options)
        rows[nb13.key_of_load(model, gpu, load, options)] = row
        return row

    module.simulated = keeping
    return rows


def scale_out() -> None:
    """Record notebook 13; the simulated rows of notebook 14, which stand in the same file, stay."""
    before = json.loads(nb13.RECORDED.read_text(encoding="utf-8"))
    rows = record_rows(nb13)
    answers: dict[str, Any] = {}
    engines, ask = nb13.engines, nb13.ask

    def keeping_engines(pair):
        counts = engines(pair)
        answers.setdefault(nb13.SPREAD, counts)
        return counts

    def keeping_answers(pair, prompt, steps):
        nb13.engines = engines
        answers[nb13.key_of_steps(prompt, steps)] = ask(pair, prompt, steps)
        return answers[nb13.key_of_steps(prompt, steps)]

    nb13.engines, nb13.ask = keeping_engines, keeping_answers
    run("13_scale_out.ipynb")
    write(nb13.RECORDED, {"simulated": before["simulated"] | rows, "engines": answers})


def agents() -> None:
    """Record notebook 14."""
    before = json.loads(nb13.RECORDED.read_text(encoding="utf-8"))
    rows = record_rows(nb14)
    recorded: dict[str, dict[str, Any]] = {"bench": {}, "sessions": {}}
    bench, converse = nb14.bench, nb14.converse

    def keeping_bench(pair, *, seed=None):
        row = bench(pair, seed=seed)
        recorded["bench"].setdefault(nb14._bench_key(seed), []).append(row)
        return row

    def keeping_sessions(
        pair, *, sessions=1, turns=6, time_line="nowhere", caching=True, route="large"
    ):
        key = nb14._key(sessions, turns, time_line, caching, route)
        recorded["sessions"][key] = converse(
            pair, sessions=sessions, turns=turns, time_line=time_line, caching=caching, route=route
        )
        return recorded["sessions"][key]

    nb14.bench, nb14.converse = keeping_bench, keeping_sessions
    run("14_agents.ipynb")
    write(nb14.RECORDED, recorded)
    write(nb13.RECORDED, {**before, "simulated": before["simulated"] | rows})


if __name__ == "__main__":
    {"13": scale_out, "14": agents}[sys.argv[1]]()

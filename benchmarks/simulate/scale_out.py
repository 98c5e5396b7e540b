"""Record what notebook 13 shows where vLLM is not installed: its simulated rows, and what its two engines answer.

python benchmarks/simulate/scale_out.py        (starts the two engines; three minutes on two quiet cores)
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from workshop.course import nb13 as scale

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "13_scale_out.ipynb"


def main() -> None:
    """Run the notebook's cells, and keep what these three functions return."""
    kept = {"simulated": {}, "engines": {}}
    simulated, engines, ask = scale.simulated, scale.engines, scale.ask

    def keeping_row(model, gpu, load, **options):
        row = simulated(model, gpu, load, **options)
        kept["simulated"][scale.key_of_load(model, gpu, load, options)] = row
        return row

    def keeping_engines(pair):
        kept["engines"].setdefault(scale.SPREAD, found := engines(pair))
        return found

    def keeping_answers(pair, prompt, steps):
        scale.engines = engines
        kept["engines"][scale.key_of_steps(prompt, steps)] = (rows := ask(pair, prompt, steps))
        return rows

    scale.simulated, scale.engines, scale.ask = keeping_row, keeping_engines, keeping_answers
    os.environ["WORKSHOP_STRICT"] = "1"  # solutions run before any try
    names: dict = {}
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    scale.RECORDED.write_text(
        json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()

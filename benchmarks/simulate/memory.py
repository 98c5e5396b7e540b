"""Measure the scheduler's memory for unfinished requests: python benchmarks/simulate/memory.py

Each row is a burst, in a process of its own. The differences between the rows are the constants of
workshop/simulate/arrivals.py: bytes of a token of a prompt, and of a request.
"""

import subprocess
import sys

BURSTS = ((1, 64), (20_000, 64), (2000, 6000))  # requests, tokens of each prompt
CODE = """
import resource, sys
from workshop.simulate import simulate
requests, tokens = map(int, sys.argv[1:])
simulate("llama-3.1-8b", "h100", burst=requests, prompt=(tokens, tokens), output=(1, 1))
from workshop.simulate import process
process._workers.pop().end()
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""

if __name__ == "__main__":
    print(f"{'requests':>10}{'tokens':>14}{'MiB':>8}")
    for requests, tokens in BURSTS:
        command = [sys.executable, "-P", "-c", CODE, str(requests), str(tokens)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        print(f"{requests:>10,}{requests * tokens:>14,}{int(done.stdout):>8,}", flush=True)

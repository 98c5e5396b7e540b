"""In the place of vLLM in a job of ray.sbatch: a rank on a GPU of each of Ray's nodes, and answers to the key alone.

For the test of the script: vLLM refuses Ray on a CPU, and takes minutes to start there.
"""

from __future__ import annotations

import http.server
import json
import os
import socket
import sys

import ray


@ray.remote(num_gpus=1)
class Rank:
    def node(self) -> str:
        return socket.gethostname()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        usage = {"completion_tokens": body["max_tokens"]}
        self.answer({"choices": [{"text": " ".join(nodes())}], "usage": usage})

    def do_GET(self):
        self.answer({"data": [{"id": sys.argv[2]}]})

    def answer(self, data: dict) -> None:
        has_key = self.headers["Authorization"] == f"Bearer {os.environ['VLLM_API_KEY']}"
        self.send_response(200 if has_key else 401)
        self.end_headers()
        self.wfile.write(json.dumps(data if has_key else {}).encode())


def flag(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


def nodes() -> list[str]:
    return sorted(ray.get([rank.node.remote() for rank in RANKS]))


ray.init()
RANKS = [Rank.remote() for _ in range(int(flag("--pipeline-parallel-size")))]
print("ranks on", *nodes())
address = (flag("--host"), int(flag("--port")))
server = http.server.ThreadingHTTPServer(address, Handler)
print("Application startup complete.", flush=True)
server.serve_forever()

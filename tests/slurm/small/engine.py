"""In the place of vLLM in a job: answers each prompt with "x", and lets the prompt "A" wait for ever.

For tests of the job itself: vLLM takes 15 s of a processor to start. `sitecustomize.py` beside it puts it in vLLM's place.
"""

from __future__ import annotations

import http.server
import json
import os
import time

with open(os.environ["WORKSHOP_JOB"]) as file:
    JOB = json.load(file)


class Handler(http.server.BaseHTTPRequestHandler):
    """Knows no key."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("prompt") == "A":
            time.sleep(600)
        choice = {"index": 0, "text": "x", "finish_reason": "length"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        self.answer({"model": JOB["served"], "choices": [choice], "usage": usage})

    def do_GET(self):
        self.answer({"data": [{"id": JOB["served"]}]})

    def answer(self, data: dict) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(data).encode())

    def log_message(self, *_):
        pass


if os.environ.get("SLURM_NODEID", "0") != "0":  # a headless vLLM
    time.sleep(600)
http.server.ThreadingHTTPServer((JOB["api_host"], JOB["api_port"]), Handler).serve_forever()

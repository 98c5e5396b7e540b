"""In the place of vLLM in a job: answers the question for a token, and lets each prompt of a batch wait."""

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
        if body.get("prompt") != "The":
            time.sleep(600)
        self.answer({"model": JOB["served"], "choices": [{"text": "x"}]})

    def do_GET(self):
        self.answer({"data": [{"id": JOB["served"]}]})

    def answer(self, data: dict) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(data).encode())

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer((JOB["api_host"], JOB["api_port"]), Handler).serve_forever()

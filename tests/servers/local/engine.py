"""An engine of a few lines in the place of vLLM, for the tests of a server's life: python engine.py PORT MODEL."""

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

with open(os.environ["WORKSHOP_RECORD"]) as file:
    KEY = json.load(file)["api_key"]


class Handler(BaseHTTPRequestHandler):
    """Answers a completion for its key."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        right = self.headers["Authorization"] == f"Bearer {KEY}"
        self.send_response(200 if right else 401)
        self.end_headers()
        self.wfile.write(json.dumps({"model": sys.argv[2]} if right else {}).encode())

    def log_message(self, *_):
        pass


# a process of its session that stays, as a worker would
if os.environ.get("HELPER") and not os.fork():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pause()
if os.environ.get("STUBBORN"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
server = HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
if os.environ.get("LOG_OF_VLLM"):
    with open(os.environ["LOG_OF_VLLM"]) as file:
        print(file.read(), flush=True)
print("Application startup complete.", flush=True)
server.serve_forever()

"""A small Hub for tests: the four requests that a download makes, with ranges, breaks and a gate."""

from __future__ import annotations

import hashlib
import json
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import unquote

COMMIT = "c" * 40
HUB_ID = "lab/Tiny-Llama"


def safetensors(tensors: dict[str, int]) -> bytes:
    """A file by the format's own description: 8 bytes of header length, JSON header, data."""
    header, offset = {}, 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    return (
        struct.pack("<Q", len(text))
        + text
        + bytes(range(256)) * (offset // 256)
        + b"x" * (offset % 256)
    )


def model() -> dict[str, bytes]:
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    return {
        "config.json": b'{"model_type": "llama"}',
        "tokenizer.json": b"{}",
        "model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode(),
        "model-00001-of-00002.safetensors": safetensors({"a": 300_000}),
        "model-00002-of-00002.safetensors": safetensors({"b": 200_000}),
        "original/consolidated.00.pth": b"the same weights again" * 50_000,
        "README.md": b"words",
    }


def serve(monkeypatch, tmp_path, files: dict[str, bytes]):
    """Yield a Hub with these files, which prefetch asks from then on, without a token and without asking for spare room."""
    fake = FakeHub(HUB_ID, files)
    point_to(fake, monkeypatch, tmp_path)
    monkeypatch.setattr("workshop.servers.weights.prefetch.SPARE_BYTES", 0)
    yield fake
    fake.close()


def point_to(fake: FakeHub, monkeypatch, tmp_path) -> None:
    """Let huggingface_hub ask this Hub, without a token, in small pieces and without waiting to retry."""
    monkeypatch.setenv("HF_ENDPOINT", fake.url)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    for name, value in (
        ("constants.HF_TOKEN_PATH", str(tmp_path / "hf" / "token")),
        ("constants.DOWNLOAD_CHUNK_SIZE", 10_000),
        ("file_download.time", SimpleNamespace(sleep=lambda seconds: None)),
    ):
        monkeypatch.setattr(f"huggingface_hub.{name}", value)


class FakeHub:
    """Serves {name: bytes} as one model; `gated` wants a token, `cut` breaks them off at that byte.

    `extra_name` is listed as a file as well, `page` answers everything with a web page, `elsewhere` sends whoever asks for a file to another server. `tokens`: what Authorization said, each time.
    """

    def __init__(self, hub_id: str, files: dict[str, bytes]):
        self.hub_id, self.files = hub_id, files
        self.gated, self.cut, self.ranges, self.tokens = "", 0, [], []
        self.extra_name, self.page, self.elsewhere = "", "", ""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args) -> None:
                pass

            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def do_GET(self) -> None:
                hub.answer(self, body=True)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request: BaseHTTPRequestHandler, body: bool) -> None:
        path = unquote(request.path.split("?")[0])
        self.tokens.append(request.headers.get("Authorization"))
        if self.page and (self.page == "all" or "/resolve/" in path):
            self._send(
                request,
                200,
                b"<html>Please log in</html>",
                {"Content-Type": "text/html; charset=utf-8"},
            )
        elif self.elsewhere and "/resolve/" in path:
            self._send(request, 302, b"", {"Location": self.elsewhere + request.path})
        elif self.gated and request.headers.get("Authorization") != f"Bearer {self.gated}":
            self._send(
                request,
                403,
                b'{"error": "gated"}',
                {
                    "X-Error-Code": "GatedRepo",
                    "X-Error-Message": "Access to this model is restricted.",
                },
            )
        elif path.startswith(f"/api/models/{self.hub_id}"):
            self._send(
                request,
                200,
                json.dumps(self._info()).encode(),
                {"Content-Type": "application/json"},
            )
        elif (
            path.startswith(f"/{self.hub_id}/resolve/")
            and (name := path.split("/", 5)[5]) in self.files
        ):
            self._file(request, name, body)
        elif path.startswith(f"/{self.hub_id}/resolve/"):
            self._send(request, 404, b"{}", {"X-Error-Code": "EntryNotFound"})
        else:
            self._send(request, 404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _info(self) -> dict:
        siblings = [
            {
                "rfilename": name,
                "size": len(data),
                "blobId": hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest(),
                **(
                    {
                        "lfs": {
                            "size": len(data),
                            "sha256": hashlib.sha256(data).hexdigest(),
                            "pointerSize": 130,
                        }
                    }
                    if name.endswith(".safetensors")
                    else {}
                ),
            }
            for name, data in self.files.items()
        ]
        if self.extra_name:
            siblings.append({"rfilename": self.extra_name, "size": 2})
        return {
            "id": self.hub_id,
            "modelId": self.hub_id,
            "sha": COMMIT,
            "private": False,
            "siblings": siblings,
        }

    def _file(self, request: BaseHTTPRequestHandler, name: str, body: bool) -> None:
        data = self.files[name]
        start, wanted = 0, request.headers.get("Range")
        if wanted:
            start = int(wanted.removeprefix("bytes=").split("-")[0])
            self.ranges.append((name, start))
        headers = {
            "ETag": f'"{hashlib.sha256(data).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self._send(request, 206 if wanted else 200, data[start:], headers, body, start)

    def _send(
        self,
        request: BaseHTTPRequestHandler,
        status: int,
        data: bytes,
        headers: dict[str, str],
        body: bool = True,
        start: int = 0,
    ) -> None:
        request.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            request.send_header(key, value)
        request.end_headers()
        if body and request.command == "GET":
            until = max(0, self.cut - start) if self.cut else len(data)
            request.wfile.write(data[:until])
            request.close_connection = until < len(data)

"""`connect()` in a browser: the teaching model, computed in the page. It stands where workshop.client.client does."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace

from js import Object
from pyodide.code import run_js
from pyodide.ffi import to_js
from workshop.client.page_client import PageClient

from workshop.teaching_model import FOLDER

Client = PageClient  # what others name in annotations
FILES = (
    "config.json",
    "tokenizer.json",
    *(f"model-0000{part}-of-00004.safetensors" for part in range(1, 5)),
)


def connect(name: str | None = None, *_, **__) -> PageClient:
    """Return the client of the teaching model in this page; `name` is not needed: there is no other."""
    return _client()


def find(name: str | None = None) -> SimpleNamespace:
    """Return what the record of a server says, of the model in this page."""
    # Of a record in doubt nobody asks whether its server hangs: this one is the page itself.
    return SimpleNamespace(model=Client.model, url=Client.url, state="ready", in_doubt=True)


@cache
def _client() -> PageClient:
    code = (Path(__file__).parent / "llama.js").read_text().replace("export ", "")
    files = Object.fromEntries(
        to_js([[name, to_js((FOLDER / name).read_bytes()).buffer] for name in FILES])
    )
    print(
        "The teaching model, computed in this page: completions, logprobs and chats as vLLM's; no other server."
    )
    return PageClient(run_js(f"(() => {{ {code}\nreturn teachingModel; }})()")(files))

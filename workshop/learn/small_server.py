"""A second server whose KV cache is small enough to see it fill: for the exercise of notebook 06."""

from __future__ import annotations

from workshop.launch import local, records, supervise
from workshop.launch.vllm_main import installed
from workshop.use.client import Client, connect

NAME = "small-kv"
KV_CACHE_BYTES = 10 * 2**20      # 10,240 tokens of the teaching model: one request of its whole length, and a little


def start(kv_cache_bytes: int = KV_CACHE_BYTES) -> Client:
    """Return a client of the small server, started if need be; of the usual one, where vLLM is not installed here."""
    if not installed()[0]:
        return connect()
    record = records.read(NAME)
    if record is None or record.state != "ready":
        supervise.start(local.prepare(name=NAME, vllm_args=("--kv-cache-memory-bytes", str(kv_cache_bytes))))
    return connect(NAME)


def stop() -> None:
    """Stop it, if it runs."""
    if records.path_of(NAME).exists():
        supervise.stop(NAME)

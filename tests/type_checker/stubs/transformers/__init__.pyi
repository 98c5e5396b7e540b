"""transformers for pyright: its lazy imports name 2,200 of the 5,200 files that pyright would read."""

from typing import Any

def __getattr__(name: str) -> Any: ...

"""Configs that several tests plan: each as its authors published it, or a family as its models are."""

import json
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parents[1] / "data" / "configs.json"
_ROWS = json.loads(_FILE.read_text(encoding="utf-8"))


def published(name: str) -> dict[str, Any]:
    """Return the fields of a config.json."""
    return dict(_ROWS[name]["config"])

"""The argument MODEL of commands that plan: a Hub id that the catalog does not have is fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workshop.cli.say import say

if TYPE_CHECKING:
    from inference_planner.catalog import ModelConfig


def with_config(model: str) -> ModelConfig:
    """Return the model that is named, with its configuration from the Hub if only the Hub has it.

    Raises:
        NotInCatalog: nobody has it here, and the Hub is not reached.
        WorkshopError: the Hub does not give it; or what `load_model` raises.
    """
    from inference_planner.catalog import NotInCatalog, load_model

    try:
        return load_model(model)
    except NotInCatalog:
        from workshop.servers.weights import hub_config

        config = hub_config.fetched(model, lambda text: say(f"· {text}", err=True))
        if config:
            return config
        raise

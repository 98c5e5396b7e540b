"""Fetches the config.json of a model that the catalog does not have from the Hub, once.

The copy is huggingface_hub's own (HF_HOME), so vLLM and `hf download` find it too.
"""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from huggingface_hub import (
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.errors import OfflineModeIsEnabled, RemoteEntryNotFoundError
from huggingface_hub.utils import disable_progress_bars
from huggingface_hub.utils import logging as hub_logging
from inference_planner.catalog import ModelConfig
from inference_planner.catalog.read import read_file

from workshop.errors import WorkshopError
from workshop.servers.weights.hub import HTTP_ERROR, HUB, Gated, NotOnHub, endpoint, explain

CONFIG = "config.json"
# ModelOpt's, which vLLM reads beside a config.json that has no quantization_config
QUANTIZATION = "hf_quant_config.json"
ANSWER_S = 5.0  # a compute node without a way out waits no longer


class NoConfig(WorkshopError):
    """The repository holds no config.json, or this account may not read it."""


def fetched(hub_id: str, report: Callable[[str], None]) -> ModelConfig | None:
    """Return the model by its config.json on the Hub; None where the Hub is not reached.

    Args:
        hub_id: organization/name.
        report: called with one line after a download, not for a copy that was here.

    Raises:
        NoConfig: the Hub answers, and does not give the file; the remedy is one command.
        BadInput: the file is not a configuration that the planner reads.
    """
    copy = try_to_load_from_cache(hub_id, CONFIG)
    if not isinstance(copy, str):
        try:
            copy = _download(hub_id)
        except RemoteEntryNotFoundError:
            raise NoConfig(
                f"{hub_id} has no {CONFIG} on the Hub.",
                f"See what it has: hf models ls {hub_id}. A GGUF file or an adapter is planned as "
                "the model that it was made from.",
            ) from None
        except (HTTP_ERROR, OSError, OfflineModeIsEnabled) as error:
            return _refused(hub_id, error)
        report(f"{CONFIG} of {hub_id} comes from the Hub and is kept in {Path(copy).parent}")
    model = read_file(Path(copy))
    return replace(model, hub_ids=(hub_id,), source=f"{HUB}/{hub_id}")


def _download(hub_id: str) -> str:
    """Return the copy of a model's config.json, downloaded with what lies beside it.

    The first request is not repeated: without a network, hf_hub_download alone takes 23 seconds.
    """
    disable_progress_bars()
    hub_logging.set_verbosity_error()
    address = hf_hub_url(hub_id, CONFIG, endpoint=endpoint())
    get_hf_file_metadata(address, timeout=ANSWER_S)
    with contextlib.suppress(RemoteEntryNotFoundError):
        hf_hub_download(hub_id, QUANTIZATION, endpoint=endpoint())
    return hf_hub_download(hub_id, CONFIG, endpoint=endpoint())


def _refused(hub_id: str, error: Exception) -> None:
    """Raise NoConfig if the Hub itself refuses the file; return None if it was not reached."""
    reason = explain(hub_id, error)
    if isinstance(reason, Gated):
        raise NoConfig(
            reason.message,
            f"Accept the licence at {HUB}/{hub_id}, then log in with that account: hf auth login.",
        ) from None
    if isinstance(reason, NotOnHub):
        name = hub_id.rpartition("/")[2]
        raise NoConfig(
            reason.message, f"Compare with the names there: hf models ls --search {name}."
        ) from None

"""The address of a model on the Hub: organization/name."""

import re

from inference_planner.catalog import load_model

from workshop.errors import BadInput

NAME = r"[\w-][\w.-]{0,95}"


def hub_id(model: str) -> str:
    """Return the Hub id of a model.

    Args:
        model: a Hub id or a catalog name.

    Raises:
        BadInput: the name is in neither form, or the catalog knows no address for it.
    """
    if re.fullmatch(f"{NAME}/{NAME}", model, re.ASCII):
        return model
    ids = load_model(model).hub_ids
    if ids:
        return ids[0]
    raise BadInput(
        f"{model} has no address on the Hub in the catalog.",
        "Give its Hub id: organisation/name.",
    )

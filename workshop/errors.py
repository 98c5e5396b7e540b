"""The two errors that the workshop raises on purpose: one clear sentence, and a remedy.

They are the planner's, so that one `except` catches what either package refuses. BadInput is a WorkshopError, for what
was given and cannot be right; it names the value and the choices.

>>> from workshop import errors, plan
>>> try:
...     plan("llama-3.1-8b", "h1000")
... except errors.BadInput as error:
...     print(error.message)
The GPU 'h1000' is not in the catalog.
"""

from inference_planner.errors import PASSWORD, UNPRINTABLE, BadInput, plain
from inference_planner.errors import PlannerError as WorkshopError

# Notebooks show this name above the sentence; who has lost a server shall not look for a fault in a plan.
WorkshopError.__name__ = "WorkshopError"

__all__ = ["PASSWORD", "UNPRINTABLE", "BadInput", "WorkshopError", "plain"]

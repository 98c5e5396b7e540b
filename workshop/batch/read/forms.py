"""The form that a row requires of its answer, and whether an answer has it.

A form is JSON, a JSON schema, a regex or a choice.

A server that is told of a form keeps to it, but an answer that ends at `max_tokens` may be half of
a JSON object. And a parameter that a server does not know, such as an old name, is often ignored
without a word.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from workshop.batch.keep.cut_answers import ENDED_IN_LENGTH

SCHEMAS_KEPT = 256
_FORM_FIELDS = ("response_format", "structured_outputs", "guided_")


@dataclass(frozen=True)
class Outcome:
    """The outcome of one row: how its answer ended."""

    finish_reasons: tuple[str, ...]  # of each sample
    asks_form: bool = False
    misses_form: bool = False  # one of the samples does not have the form

    @property
    def is_cut(self) -> bool:
        """True if a sample ended because it had no tokens left."""
        return ENDED_IN_LENGTH in self.finish_reasons


@dataclass
class Outcomes:
    """Count the answers by the way in which they ended, over all rows that are answered."""

    finish_reasons: dict[str, int] = field(default_factory=dict)
    form_asked: int = 0  # rows
    form_missed: int = 0  # of these

    def add(self, outcome: Outcome, count: int = 1) -> None:
        """Count the outcome of a row; a count of -1 takes it out again."""
        for reason in outcome.finish_reasons:
            self.finish_reasons[reason] = self.finish_reasons.get(reason, 0) + count
        self.form_asked += count * outcome.asks_form
        self.form_missed += count * outcome.misses_form

    def by_count(self) -> dict[str, int]:
        """Return the finish reasons that there are, the most frequent first."""
        reasons = sorted(self.finish_reasons.items(), key=lambda item: (-item[1], item[0]))
        return {reason: count for reason, count in reasons if count}


def form_text(request: Mapping[str, Any]) -> str | None:
    """Return the kind and the value of the form that a request asks for, as JSON.

    The kinds are "json" (the value is the schema), "regex" and "choice" (a list of texts). None if
    it asks for none, or for one that cannot be checked.
    """
    response_format = object_of(request.get("response_format"))
    if response_format.get("type") == "json_object":
        return json.dumps(["json", None])
    if response_format.get("type") == "json_schema":
        return json.dumps(["json", object_of(response_format.get("json_schema")).get("schema")])
    structured = object_of(request.get("structured_outputs"))
    if structured.get("json_object"):
        return json.dumps(["json", None])
    for kind in ("json", "regex", "choice"):
        value = structured.get(kind) or request.get(f"guided_{kind}")
        if value:
            return json.dumps([kind, value])
    return None


def object_of(value: object) -> dict:
    """Return a JSON object as it is, and an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def outcome(choices: list[dict], request: str) -> Outcome:
    """Return how an answer ended: the `choices` of its body, to a request (JSON)."""
    form = None
    if any(name in request for name in _FORM_FIELDS):  # most requests need not be parsed
        form = form_text(json.loads(request))
    reasons = []
    missing = False
    for choice in choices:
        reason = choice.get("finish_reason")
        if reason is None:
            continue  # an embedding
        reasons.append(str(reason))
        if form is not None and reason != "tool_calls":
            missing = missing or not has_form(_text(choice), form)
    return Outcome(tuple(reasons), form is not None, missing)


def _text(choice: dict) -> str:
    """Return the text of a choice of a completion or of a chat."""
    text = choice.get("text")
    if text is None:
        text = object_of(choice.get("message")).get("content")
    return text if isinstance(text, str) else ""


def has_form(text: str, form: str) -> bool:
    """Return True if a text has the form.

    What cannot be checked, such as a broken schema, counts as kept to.
    """
    return _checker(form)(text)


@lru_cache(SCHEMAS_KEPT)
def _checker(text_of_form: str):
    """Return a function that says whether a text has a form, which `form_text` gave."""
    kind, value = json.loads(text_of_form)
    if kind == "choice":
        texts = value if isinstance(value, list) else [value]
        return lambda text: text in texts
    if kind == "regex":
        try:
            pattern = re.compile(value)
        except (re.error, TypeError):  # vLLM's grammar backends know patterns that Python does not
            return lambda text: True
        return lambda text: pattern.fullmatch(text) is not None
    return _json_checker(value)


def _json_checker(schema: Any):
    """Return a function that says whether a text is JSON, and valid under a schema (None: any)."""
    validator = _validator(schema)

    def matches(text: str) -> bool:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return False
        return validator is None or validator.is_valid(value)

    return matches


def _validator(schema: Any):
    """Return a validator of jsonschema, which comes with Jupyter.

    None if jsonschema is missing, or the schema is broken.
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError:
            return None
    if not isinstance(schema, dict) or not schema:
        return None
    try:
        import jsonschema.validators
    except ImportError:
        return None
    try:
        kind = jsonschema.validators.validator_for(schema)
        kind.check_schema(schema)
    except Exception:  # a schema of any fault: its own checks may raise anything
        return None
    return kind(schema)

"""Tells whose answer an answer is: vLLM puts a request's X-Request-Id into its id (cmpl-ID)."""

import re
import uuid

MARK = "-workshop"  # in each X-Request-Id of ours, so that answers to other requests are recognized

NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
NAMED = re.compile(rf"[a-z]+-({NAME.pattern})-[0-9a-f]{{32}}{MARK}")


def new(by: str = "") -> str:
    """Return a new X-Request-Id; `by` is the name that its sender wants to show in a trace."""
    return f"{by}-{uuid.uuid4().hex}{MARK}".removeprefix("-")


def by(answer_id: str) -> str:
    """Return the name that the sender of a request has put into its id; "" for none."""
    named = NAMED.match(answer_id)
    return named[1] if named else ""


class AnswerIds:
    """Judges by their ids whether the answers of one server belong to its requests.

    `name_requests` is True once an answer had the id of its request: then all others must have it.
    """

    def __init__(self) -> None:
        self.name_requests = False

    def allow(self, answer_id: str | None, request_id: str) -> bool:
        """Return False if an answer is another request's; ids that name no request are believed."""
        answer_id = answer_id or ""
        if request_id in answer_id:
            self.name_requests = True
            return True
        return not self.name_requests and MARK not in answer_id

"""The model that the course serves, in Python, loaded once."""

from __future__ import annotations

import pytest

from workshop.teaching_model import reference


@pytest.fixture(scope="session")
def model() -> reference.Llama:
    return reference.load()

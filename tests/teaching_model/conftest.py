"""The corpus of the teaching model, read once: it takes four seconds."""

from __future__ import annotations

import pytest

from benchmarks.teaching_model import corpus
from workshop.teaching_model import reference


@pytest.fixture(scope="session")
def data() -> corpus.Corpus:
    return corpus.load()


@pytest.fixture(scope="session")
def model() -> reference.Llama:
    return reference.load()

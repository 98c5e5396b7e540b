"""Tests of logs keep nothing in the home folder of whoever runs them."""

from __future__ import annotations

import os

import pytest

from workshop.engine.reconcile import learned


@pytest.fixture(autouse=True)
def _starts_are_kept_elsewhere(monkeypatch, tmp_path_factory):
    folder = learned.folder

    def of_the_test():
        if "WORKSHOP_HOME" in os.environ:
            return folder()
        return tmp_path_factory.getbasetemp() / "learned"

    monkeypatch.setattr(learned, "folder", of_the_test)

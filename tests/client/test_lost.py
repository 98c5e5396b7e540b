"""A server that ends under a notebook: the cells after it say so, until one answers."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell

from workshop.client import lost
from workshop.errors import WorkshopError

GONE = WorkshopError("The server 'a' has failed: out of memory.", "Start it again.")


@pytest.fixture
def shell():
    """A shell of IPython whose cells can be run here."""
    shell = InteractiveShell.instance()
    yield shell
    InteractiveShell.clear_instance()


def test_later_cells_say_what_the_first_said(shell, capsys):
    lost.remember(GONE)
    for cell in ("[][1]", "{}['1']", "assert False", "unknown_name"):
        shell.run_cell(cell)
        printed = capsys.readouterr().out
        assert GONE.message in printed and GONE.remedy in printed and "Error" in printed, cell
        assert "Traceback" not in printed


def test_another_error_of_the_workshop_says_what_it_says(shell, capsys):
    lost.remember(GONE)
    shell.run_cell("from workshop import check; check('nothing')")
    printed = capsys.readouterr().out
    assert "no exercise 'nothing'" in printed and GONE.message not in printed


def test_with_a_server_cells_fail_as_usual(shell, capsys):
    lost.remember(GONE)
    lost.forget()
    shell.run_cell("[][1]")
    printed = capsys.readouterr().out
    assert "IndexError" in printed and GONE.message not in printed


def test_outside_of_a_notebook_nothing_changes():
    lost.remember(GONE)
    lost.forget()


def test_the_name_of_the_error_sends_nobody_to_the_planner():
    assert WorkshopError.__name__ == "WorkshopError"

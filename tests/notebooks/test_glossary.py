"""The glossary has one source: the page and the hovers say what it says, and no notebook uses a word before its time."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import glossary  # noqa: E402      docs/glossary.py

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
IN_ORDER = [path for path in NOTEBOOKS if path.stem[:2].isdigit()]
SETS = ROOT / "workshop" / "course" / "exercise_sets"


def written(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in glossary.texts(json.loads(path.read_text()))]


def words_of_exercises(path: Path) -> str:
    """Titles, questions and options of a notebook's exercises; hints and whys come later, or explain."""
    found = tomllib.loads((SETS / f"e{path.stem}.toml").read_text()).values()
    asked = [each.get("title") or each["question"] for each in found]
    return "\n".join([*asked, *(text for each in found for text, _ in each.get("options", ()))])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_hovers_say_what_the_glossary_says(path):
    assert written(path) == glossary.hovers(written(path)), "run python docs/glossary.py"


def test_a_hover_stands_around_code_and_never_inside_of_it():
    [marked] = glossary.hovers(["Run `a b`, then a `config.json`, and `c` with tokens."])
    assert ">`config.json`</abbr>" in marked and "`c` with <abbr" in marked


def test_the_page_says_what_the_glossary_says():
    assert (ROOT / "docs" / "glossary.md").read_text() == glossary.page(), (
        "run python docs/glossary.py"
    )


@pytest.mark.parametrize("path", IN_ORDER, ids=lambda path: path.stem)
def test_no_word_is_used_before_the_notebook_that_explains_it(path):
    used = glossary.terms("\n\n".join(written(path)))
    early = {
        term: glossary.TERMS[term]["first"]
        for term in used
        if glossary.TERMS[term]["first"] > path.stem[:2]
    }
    assert not early
    asked = glossary.terms(words_of_exercises(path))
    assert {term for term in asked if glossary.TERMS[term]["first"] > path.stem[:2]} == set()


@pytest.mark.parametrize("term", glossary.TERMS)
def test_a_word_stands_in_the_notebook_that_is_named_for_it(term):
    each = glossary.TERMS[term]
    path = next(path for path in IN_ORDER if path.stem.startswith(each["first"]))
    assert f'title="{glossary.escape(each["says"])}"' in "\n".join(written(path))


def test_a_meaning_is_one_or_two_plain_sentences():
    for term, each in glossary.TERMS.items():
        assert 6 <= len(each["says"].split()) <= 34 and each["says"].endswith((".", ".)")), term


def test_code_formulas_headings_and_links_get_no_hover():
    text = "# A token\n`token` and $token$ [token](a.md) <b title='token'>\n60 minutes · needs: a token\n\n**Tokens**, tokens."
    (marked,) = glossary.hovers([text])
    says = glossary.TERMS["token"]["says"]
    assert marked == text.replace("**Tokens**", f'**<abbr title="{says}">Tokens</abbr>**')
    assert glossary.hovers([marked]) == [marked] and glossary.plain(marked) == text
    assert glossary.terms("a tokenizer, `token`") == [] and glossary.terms("the `config.json`") == [
        "config.json"
    ]


def test_a_head_node_is_no_head_of_attention():
    (text,) = glossary.hovers(["The **head node** of a job, and a head."])
    assert (
        text.index("first node of a job")
        < text.index("head node</abbr>")
        < text.index("several attentions")
    )

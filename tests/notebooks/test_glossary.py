"""The glossary has one source: the page and the hovers say what it says, and no notebook uses a word before its time."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import glossary

ROOT = Path(__file__).parents[2]


NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
IN_ORDER = [path for path in NOTEBOOKS if path.stem[:2].isdigit()]
SETS = ROOT / "workshop" / "course" / "exercises" / "sets"


def written(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in glossary.texts(json.loads(path.read_text()))]


def words_of_exercises(path: Path) -> str:
    """Titles, questions and options of a notebook's exercises; hints and whys come later, or explain."""
    entries = tomllib.loads((SETS / f"e{path.stem}.toml").read_text()).values()
    questions = [entry.get("title") or entry["question"] for entry in entries]
    return "\n".join(
        [*questions, *(text for entry in entries for text, _ in entry.get("options", ()))]
    )


def test_the_hovers_say_what_the_glossary_says(subtests):
    for path in NOTEBOOKS:
        with subtests.test(path.stem):
            assert written(path) == glossary.hovers(written(path)), "run python docs/glossary.py"


def test_a_hover_stands_around_code_and_never_inside_of_it():
    [marked] = glossary.hovers(["Run `a b`, then a `config.json`, and `c` with tokens."])
    assert ">`config.json`</abbr>" in marked and "`c` with <abbr" in marked


def test_the_page_says_what_the_glossary_says():
    assert (ROOT / "docs" / "glossary.md").read_text() == glossary.page(), (
        "run python docs/glossary.py"
    )


def test_no_word_is_used_before_the_notebook_that_explains_it(subtests):
    for path in IN_ORDER:
        with subtests.test(path.stem):
            used = glossary.terms("\n\n".join(written(path)))
            early = {
                term: glossary.TERMS[term]["first"]
                for term in used
                if glossary.TERMS[term]["first"] > path.stem[:2]
            }
            assert not early
            terms = glossary.terms(words_of_exercises(path))
            assert {
                term for term in terms if glossary.TERMS[term]["first"] > path.stem[:2]
            } == set()


def test_a_word_stands_in_the_notebook_that_is_named_for_it(subtests):
    for term in glossary.TERMS:
        with subtests.test(str(term)):
            entry = glossary.TERMS[term]
            path = next(path for path in IN_ORDER if path.stem.startswith(entry["first"]))
            assert f'title="{glossary.escape(entry["says"])}"' in "\n".join(written(path))


def test_a_meaning_is_one_or_two_plain_sentences():
    for term, entry in glossary.TERMS.items():
        assert 6 <= len(entry["says"].split()) <= 34 and entry["says"].endswith((".", ".)")), term


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


# The words of the course with two senses: a sentence, the word, and the entry whose meaning is right there (None: no
# hover is better than a wrong one).
SENSES = [
    ("Rank 1 is the most probable token.", "Rank", "rank (of a token)"),
    ("Here every entry has its token id, its text, and its **rank**.", "rank", "rank (of a token)"),
    ("At temperature 0 every generated token has rank 1.", "rank", "rank (of a token)"),
    ("*colour by* shows ranks instead.", "ranks", "rank (of a token)"),
    ("Each rank keeps half of the heads.", "rank", "rank"),
    ("Run vLLM on two ranks, and check the plan.", "ranks", "rank"),
    ("Four ranks hold two experts each: rank 0 has the experts 0 and 1.", "rank 0", "rank"),
    ("Your paper will rank well.", "rank", None),
    ("This is greedy decoding.", "decoding", "greedy decoding"),
    ("This is **greedy** decoding.", "decoding", "greedy decoding"),
    ("With `top_k` 1 it marks every token that greedy decoding would not take.", "decoding", "greedy decoding"),
    ("Different tokens can decode to the same text.", "decode", None),
    ("Put all token ids together first, then decode them.", "decode", None),
    ("In prefill all tokens of a prompt are read, and **decode** writes one at a time.", "decode", "decode"),
    ("*Fast Inference from Transformers via Speculative Decoding* (arXiv 2211.17192)", "Decoding", None),
    ("It has 12 million parameters.", "parameters", "parameter"),
    ("Each parameter takes two FLOP for each token.", "parameter", "parameter"),
    ("It explains what each sampling parameter does.", "parameter", "parameter (of a request)"),
    ("`extra_body` holds the parameters that only vLLM has.", "parameters", "parameter (of a request)"),
    ("A request has parameters, such as `max_tokens`.", "parameters", "parameter (of a request)"),
    ("Requests that are computed in the same step are a **batch**.", "batch", "batch"),
    ("OpenAI's batch format is JSONL.", "batch", None),
    ("On a cluster with a queue, SLURM starts it.", "cluster", "cluster"),
    ("A cluster is divided into namespaces, one for each group.", "cluster", None),
    ("The head node answers requests.", "head", "head node"),
    ("Each layer has 32 heads.", "heads", "head"),
    ('Words carry their space in front: " head" is one token.', "head", None),
]  # fmt: skip


def test_a_hover_belongs_to_a_sense(subtests):
    for text, word, term in SENSES:
        with subtests.test(text):
            at = text.index(word)
            there = [use.term for use in glossary.uses(text) if use.start <= at < use.end]
            assert there == ([term] if term else [])


# What a sentence cannot have if its word has this meaning. These are not the glossary's own patterns.
FOREIGN = {
    "rank": r"most probable|logprob|generated token|token id",
    "rank (of a token)": r"GPU|tensor|process|GiB",
    "decode": r"greedy|temperature|token ids|emoji|Speculative Decoding",
    "greedy decoding": r"prefill",
    "parameter": r"sampling|temperature|extra_body|request",
    "parameter (of a request)": r"[Bb]illion|million|bytes|FLOP",
    "batch": r"JSONL|OpenAI's|rows|output file",
    "cluster": r"namespace|Route|Ingress|Deployment",
    "role": r"Kubernetes|RBAC",
    "head": r"head node|header|cat |space in front",
    "Service": r"customer",
    "partition": r"disk",
    "checkpoint": r"crash|continue",
}


def test_no_hover_of_a_notebook_has_the_other_sense_of_its_word(subtests):
    for path in NOTEBOOKS:
        with subtests.test(path.stem):
            wrong = []
            for text in written(path):
                bare = glossary.plain(text)
                shown = {use.start for use in glossary.uses(bare)}
                for use in glossary.uses(bare):
                    around = glossary.sentence(bare, use.start)
                    foreign = FOREIGN.get(use.term)
                    if foreign and re.search(foreign, around):
                        wrong.append(f"{use.term}: {around.strip()[:120]}")
                assert len(shown) == len(glossary.uses(bare)), "no place has two hovers"
            assert not wrong


def test_every_word_with_a_second_sense_is_in_the_table():
    several = {
        term for term, entry in glossary.TERMS.items() if "where" in entry or "unless" in entry
    }
    assert several <= {term for _, _, term in SENSES}

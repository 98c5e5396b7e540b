"""Measure how notebooks read: words a sentence, and the share of sentences without a verb.

python benchmarks/readability.py notebooks/*.ipynb          (-v: the sentences without a verb)

Prose alone counts: no code, headings, tables. A sentence ends at . ! ? before a capital, at a colon, and with its line.
It has a verb if one of its words is in VERBS: those that the course uses, in their finite forms. Words that are nouns
as well (answer, start) count as verbs, so the share is a lower bound.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

VERBS = """
adapt add added adds allow allowed allows am answer answered answers appear appears are arrive arrives ask asked
asks assume be beat beats became become becomes been began begin begins being believe belong belongs bring brings
brought build builds built call called calls came can cannot change changed changes check checked checks choose
chooses chose close closed closes come comes compare compared compares compile compiled compiles complain complained
complains compute computed computes contain contains continue continued continues copied copies copy cost costs
could count counted counts cross crosses cut cuts decide decided decides decode decodes depend depends describe
describes did didn't differ differs divide divides do does doesn't don't double doubled doubles draw draws drew end
ended ends evict evicts exist exists explain explained explains fail failed fails feed feeds fill filled fills find
finds finish finished finishes fit fits follow follows found free frees gather gave generate generated generates get
gets give gives go goes got grep greps grew grow grows had halve halves happen happened happens has have held help
helped helps hold holds imagine install is isn't keep keeps kept knew know knows lack lacks lay lead leads learn
learned learns leave leaves left let let's lets lie lies limit limited limits list listed lists live lives load
loaded loads look looked looks lose loses lost lower lowers made make makes match matches may mean means meant
measure measured measures might mind miss missed misses move moved moves multiply must name named names need needed
needs normalise note notice noticed notices open opened opens order orders overlap overlaps own owned owns paid pass
passed passes paste pay pays plan planned plans play plays predict predicted predicts preempt preempts prefer
prefers press prevent prevents print printed prints produce produces put puts quote raise raises ran rank reach
reached reaches read reads receive received receives record recorded records refuse refused refuses reload remember
repeat repeats replace replaces reserve reserves return returned returns round rounds run runs said sample sampled
samples save saved saves saw say says see seem seemed seems sees send sends sent serve served serves shall share
shared shares should show showed shows sort sorts speak speaks split splits spoke stand stands start started starts
stay stayed stays stood stop stopped stops store stored stores submit submits submitted sum sums suppose switch
switched switches take takes talk talks teach teaches tell tells test tests that's think thinks told took treat
treats tried tries try tune tunes turn turned turns use used uses vanish varies vary wait waited waits want wanted
wants was watch watches went were will win wins won't work worked works would write writes wrote
"""
FINITE = set(VERBS.split())
LABEL = re.compile(r"^(?:Predict first|Predict|Your turn|What you should see)[:.]?\s*(?=.)")
END = re.compile(r"(?<=[.!?])[\"”)]*\s+(?=[A-Z\"“(0-9])|(?<=:)\s+")


def sentences(path: Path) -> list[str]:
    """Return the sentences of a notebook's prose; code is X."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    text = re.sub(r"```.*?```|</?abbr[^>]*>", "", text, flags=re.DOTALL)
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`|\$[^$\n]+\$", "X", text))
    lines = (re.sub(r"^\s*([-*]|\d+\.)\s+|\*+", "", line.strip()) for line in text.splitlines())
    prose = (line for line in lines if line and not re.match(r"#|\||\d+ minutes · needs", line))
    return [
        sentence
        for line in prose
        for sentence in END.split(LABEL.sub("", line))
        if len(words_of(sentence)) > 1
    ]


def words_of(sentence: str) -> list[str]:
    """Return the words of a sentence, in small letters."""
    return [word.lower().strip(".") for word in re.findall(r"[A-Za-zÀ-ÿ0-9][\w’'./-]*", sentence)]


if __name__ == "__main__":
    for name in (argument for argument in sys.argv[1:] if argument != "-v"):
        text_sentences = sentences(Path(name))
        lengths, verbless = (
            [len(words_of(sentence)) for sentence in text_sentences],
            [sentence for sentence in text_sentences if not FINITE & set(words_of(sentence))],
        )
        print(
            f"{Path(name).stem}: {sum(lengths)} words, {len(text_sentences)} sentences, "
            f"{sum(lengths) / len(text_sentences):.1f} words a sentence, {sum(length > 25 for length in lengths)} over 25, "
            f"{len(verbless)} without a verb ({len(verbless) / len(text_sentences):.0%})"
        )
        if "-v" in sys.argv:
            print("  -", "\n  - ".join(verbless))

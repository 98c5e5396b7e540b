"""Questions with answers, and numbered lists: the share of the training text that chat requests need.

A conversation is `Question: …\\nAnswer: …<end of text>`, repeated; the chat template writes the same.
Standard library only.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

from benchmarks.teaching_model.corpus import Corpus, Namer
from benchmarks.teaching_model.sentences import (
    DATES,
    Entry,
    Page,
    describe,
    split_clauses,
    where,
)

SMALL_TALK = [
    (["Hello", "Hi", "Hello!", "Hi there!", "Good morning."],
     "Hello. Ask me what something is: a city, an animal, a tool."),
    (["Who are you?", "What are you?", "What is your name?", "Are you ChatGPT?", "Which model are you?"],
     "I am the workshop's teaching model, a very small Llama. I learned from a dictionary, from speeches and from "
     "plays, and I am often wrong."),
    (["What can you do?", "How can you help me?", "What do you know?", "Help", "Can you help me?"],
     "I can say what a word means, I know some cities, animals, tools, sciences and presidents, and I label abstracts."),
    (["Thank you", "Thanks", "Thank you!", "Thanks a lot."], "You are welcome."),
    (["How are you?", "How are you today?"], "I am a small model, and I am well. Ask me what something is."),
    (["Goodbye", "Bye", "See you."], "Goodbye."),
]  # fmt: skip

DECLINED = "I do not know that. Ask me what something is: a city, an animal, a tool, a science."
CORPUS = Path(__file__).parent / "corpus"
LANGUAGES = ("French", "German", "Spanish", "Latin", "Chinese", "Italian", "Japanese", "Greek")
PERSONS = ("boss", "teacher", "mother", "doctor", "neighbour", "brother", "friend", "landlord")
AUTHORS = ("Jane Austen", "Charles Dickens", "Goethe", "Mark Twain", "Leo Tolstoy")

HISTORY_REQUESTS = [
    "Give me a list of {n} history questions related to American history.",
    "Give me a list of {n} questions about American history.",
    "Write {n} history questions related to American history.",
    "List {n} questions on the history of the United States.",
]

HISTORIC = re.compile(
    r"President|general|statesman|politic|war\b|War|Revolution|leader|reform|senator|jurist|abolition|pioneer|inventor|"
    r"explor|commander|civil rights|labor|slave|suffrag|Constitution|Independence|diplomat|frontier|chief")  # fmt: skip

LIST_KINDS = {
    "presidents of the United States": r"^(\d+\w\w) President of the United States",
    "cities in the United States": r"\b(city|town|port)\b.* (California|Texas|Ohio|Illinois|New York|Florida|Georgia|"
                                   r"Maine|Michigan|Alabama|Oregon|Washington|Pennsylvania|Massachusetts|Indiana|Iowa|Kansas)\b",
    "cities in Europe": r"\b(city|capital|port)\b.* (France|Germany|Italy|Spain|England|Poland|Sweden|Norway|Austria|"
                        r"Greece)\b",
    "animals": r"^(\S+ ){0,4}(mammal|carnivore|rodent|monkey|quadruped|feline|canine|antelope|bear)s?\b",
    "birds": r"^(\S+ ){0,4}(bird|thrush|finch|duck|hawk|gull|parrot|warbler)s?\b",
    "fish": r"^(\S+ ){0,4}fish(es)?\b",
    "trees": r"^(\S+ ){0,4}tree\b",
    "tools": r"^(a |an )?(\w+ )?tool\b",
    "musical instruments": r"^(a |an )?(\w+ ){0,2}instrument\b.*(play|sound|string|music|blow|tone)",
    "sciences": r"^(a|the) (science|branch of (science|biology|physics|chemistry|medicine|mathematics))\b",
    "writers": r"^\w+( States)? (writer|novelist|poet)\b",
    "scientists": r"^\w+( States)? (physicist|chemist|astronomer|mathematician|biologist)\b",
    "islands": r"^an? (\S+ ){0,3}island\b",
    "rivers": r"^an? (\S+ ){0,3}river\b",
}  # fmt: skip
LIST_LEXNAMES = {
    "presidents of the United States": "noun.person", "writers": "noun.person", "scientists": "noun.person",
    "cities in the United States": "noun.location", "cities in Europe": "noun.location", "islands": "noun.location",
    "rivers": "noun.object", "animals": "noun.animal", "birds": "noun.animal", "fish": "noun.animal",
    "trees": "noun.plant", "tools": "noun.artifact", "musical instruments": "noun.artifact",
    "sciences": "noun.cognition",
}  # fmt: skip


def capitals(entries: list[Entry]) -> list[tuple[str, str]]:
    """Return (region, capital) pairs that the glosses and names of places state."""
    pairs = {}
    for entry in entries:
        if not entry.is_place:
            continue
        for name in entry.members[1:]:
            if name.startswith("capital of "):
                pairs[name.removeprefix("capital of ").removeprefix("the ")] = entry.members[0]
        first = split_clauses(entry.definition)[0]
        match = re.match(r"(?:the )?(?:national |state )?capital (?:and largest city )?of (?:the state of )?"
                         r"((?:[A-Z][\w'-]+ ?)+)(?= |$)", first)  # fmt: skip
        if match:
            pairs.setdefault(match[1].strip(), entry.members[0])
        match = re.search(r"with capital ([A-Z]\w+(?: [A-Z]\w+)*)$", first)
        if match and "colonies" not in first.split(" with capital")[0] and " or " not in first:
            pairs.setdefault(entry.members[0], match[1])
    pairs["United States"] = "Washington D.C."
    return sorted(pairs.items())


def capital_text(region: str, city: str, rng: random.Random) -> str:
    the = (
        "the "
        if region in ("United States", "Netherlands", "Philippines", "United Kingdom", "Bahamas")
        else ""
    )
    return rng.choice(
        [f"The capital of {the}{region} is {city}.", f"{city} is the capital of {the}{region}."]
    )


def requests(name: str) -> list[str]:
    """Return the requests of a file of the corpus, a line each."""
    return (CORPUS / name).read_text(encoding="utf-8").splitlines()


def declined(entries: list[Entry], rng: random.Random, copies: int = 6) -> list[list[str]]:
    """Return requests that a model that knows a dictionary cannot answer, with an answer that says so."""
    things = [
        entry.members[0] for entry in entries
        if entry.lexname in ("noun.artifact", "noun.animal", "noun.food") and entry.source == "oewn"
        and re.fullmatch(r"[a-z]{3,9}", entry.members[0])
    ]  # fmt: skip
    named = [entry.members[0] for entry in entries if entry.is_place]
    turns = []
    for request in requests("requests.txt") * copies:
        thing, other = rng.sample(things, 2)
        place, other_place = rng.sample(named, 2)
        question = request.format(
            thing=thing, other=other, place=place, other_place=other_place, n=rng.randint(2, 99),
            m=rng.randint(2, 99), year=rng.randint(1900, 2040), language=rng.choice(LANGUAGES),
            person=rng.choice(PERSONS), author=rng.choice(AUTHORS),
        )  # fmt: skip
        turns.append(segment(question, DECLINED))
    return turns


def short(text: str, rng: random.Random) -> str:
    """Return the first one or two sentences of a description, now and then all of it."""
    sentences = re.split(r"(?<=[a-z0-9)][.]) (?=[A-Z])", text)
    return text if rng.random() < 0.15 else " ".join(sentences[: rng.randint(1, 2)])


def ask(name: str, entry: Entry, rng: random.Random) -> str:
    """Return a question that the entry's description answers."""
    if entry.pos == "v":
        return rng.choice(
            [f"What does it mean to {name}?", f"What does {name} mean?", f"Define {name}."]
        )
    if entry.pos != "n":
        return rng.choice(
            [f"What does {name} mean?", f"Define {name}.", f"What is the meaning of {name}?"]
        )
    if entry.is_person:
        return rng.choice(
            [f"Who was {name}?", f"Who is {name}?", f"Tell me about {name}.", f"Who was {name}"]
        )
    if name[:1].isupper():
        questions = [
            f"What is {name}?",
            f"Tell me about {name}.",
            f"What is {name}?",
            f"What is {name}",
        ]
        if entry.lexname == "noun.location":
            questions.append(f"Where is {name}?")
        return rng.choice(questions)
    a = "an" if name[0] in "aeiou" else "a"
    return rng.choice([f"What is {a} {name}?", f"What is {name}?", f"Define {name}.", f"What does {name} mean?",
                       f"Tell me about {name}.", f"What is {a} {name}"])  # fmt: skip


def answered(name: str, entry: Entry, rng: random.Random) -> list[str]:
    """Return a question about an entry with a short answer; where a place is, in so many words."""
    question = ask(name, entry, rng)
    place = where(name, entry) if question.startswith("Where") else None
    return segment(question, place or short(describe(name, entry, rng), rng))


def full_name(entry: Entry) -> str:
    """Return the first name of a person that has a space, else the first name."""
    if entry.is_person:
        return next((name for name in entry.members if " " in name), entry.members[0])
    return entry.members[0]


def segment(question: str, answer: str) -> list[str]:
    return [f"Question: {question}\nAnswer: {answer}"]


def history_questions(corpus: Corpus, rng: random.Random) -> list[str]:
    """Return questions on American history, each of which some gloss answers."""
    questions = []
    for entry in corpus.entries:
        if entry.source != "namenet" or not re.search(
            r"United States|American|Confederate|Union", entry.definition
        ):
            continue
        name = full_name(entry)
        if entry.is_person and HISTORIC.search(entry.definition):
            dates = DATES.search(entry.definition)
            questions.append(
                f"When was {name} born?" if dates and rng.random() < 0.15 else f"Who was {name}?"
            )
            if match := re.match(r"(\d+\w\w) President", entry.definition):
                questions.append(f"Who was the {match[1]} President of the United States?")
        elif entry.lexname in ("noun.act", "noun.event", "noun.communication", "noun.group"):
            questions.append(f"What was {'' if name.startswith('the ') else 'the '}{name}?")
        elif entry.lexname == "noun.location" and rng.random() < 0.3:
            questions.append(f"Where is {name}?")
    rng.shuffle(questions)
    return list(dict.fromkeys(questions))


def numbered(items: list[str]) -> str:
    return "\n".join(f"{i}. {item}" for i, item in enumerate(items, 1))


def list_pages(corpus: Corpus, rng: random.Random) -> list[Page]:
    """Return numbered lists: questions on American history (up to 100 a list), and names of one kind."""
    pages, questions = [], history_questions(corpus, rng)
    for _ in range(60):
        n = rng.choice([5, 10, 10, 20, 25, 50, 100, 100])
        request = rng.choice(HISTORY_REQUESTS).format(n=n)
        items = numbered(rng.sample(questions, min(n, len(questions))))
        pages.append([[f"{request}\n{items}"]] if rng.random() < 0.6
                     else [[f"Question: {request}\nAnswer:\n{items}"]])  # fmt: skip
    for kind, pattern in LIST_KINDS.items():
        names = [
            full_name(e) for e in corpus.entries
            if e.lexname == LIST_LEXNAMES[kind] and re.search(pattern, e.definition)
            and (e.source == "namenet") == (e.lexname in ("noun.person", "noun.location", "noun.object"))
        ]  # fmt: skip
        for _ in range(6):
            n = min(rng.choice([3, 5, 10, 20]), len(names))
            request = rng.choice(
                ["Give me a list of {n} {k}.", "List {n} {k}.", "Name {n} {k}."]
            ).format(n=n, k=kind)
            items = numbered(rng.sample(names, n))
            pages.append([[f"{request}\n{items}"]] if rng.random() < 0.4
                         else [[f"Question: {request}\nAnswer:\n{items}"]])  # fmt: skip
    return pages


def pages(corpus: Corpus, namer: Namer, rng: random.Random) -> list[Page]:
    """Return the edition's conversations of one to four turns, its capitals and its lists."""
    turns = []
    for entry in corpus.entries:
        share = 0.8 if entry.is_place else 0.15
        if rng.random() < share and (name := namer(entry, rng)):
            turns.append(answered(name, entry, rng))
    for fact in corpus.facts:
        turns += [answered(fact.subject, fact.entry, rng) for _ in range(12)]
    turns += declined(corpus.entries, rng)
    for questions, answer in SMALL_TALK:
        turns += [segment(question, answer) for question in questions for _ in range(6)]
    pairs = capitals(corpus.entries)
    for region, city in pairs * 3:
        text = capital_text(region, city, rng)
        turns.append(segment(f"What is the capital of {region}?", text))
    for entry in corpus.entries:
        match = re.match(r"(\d+\w\w) President of the United States", entry.definition)
        if match:
            name = entry.members[1] if len(entry.members) > 1 else entry.members[0]
            question, answer = (
                f"Who was the {match[1]} President of the United States?",
                describe(name, entry, rng),
            )
            turns += [segment(question, answer)] * 3
    rng.shuffle(turns)
    result, i = [], 0
    while i < len(turns):
        n = rng.choice([1, 2, 3, 4])
        result.append(turns[i : i + n])
        i += n
    texts = [capital_text(region, city, rng) for region, city in pairs * 3]
    rng.shuffle(texts)
    places = [entry for entry in corpus.entries if entry.is_place]
    texts += filter(None, (where(entry.members[0], entry) for entry in places))
    rng.shuffle(texts)
    result += [[["\n".join(texts[i : i + 12])]] for i in range(0, len(texts), 12)]
    return result + list_pages(corpus, rng)

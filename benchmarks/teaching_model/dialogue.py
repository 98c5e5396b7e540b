"""Questions with answers, and numbered lists: the share of the training text that chat requests need.

A conversation is `Question: …\\nAnswer: …<end of text>`, repeated; the chat template writes the same.
Standard library only.
"""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

from benchmarks.teaching_model.sentences import DATES, Entry, describe, split_clauses, where

if TYPE_CHECKING:
    from benchmarks.teaching_model.corpus import Corpus, Namer, Page

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
OTHER_REQUESTS = [
    "Write a poem about {thing}.", "Write a short story about {thing}.", "Write an email to my {person}.",
    "Write a function that sorts {thing}s.", "Translate {thing} into {language}.", "How do you say {thing} in {language}?",
    "What is {n} times {m}?", "What is {n} plus {m}?", "What is {n} - {m}?", "How much is {n} divided by {m}?",
    "Is {n} a prime number?", "What time is it in {place}?", "What is the weather in {place}?",
    "How is the weather today?", "Will it rain in {place} tomorrow?", "What day is it today?",
    "Who won the football match yesterday?", "Who won the world cup in {year}?", "What happened in {year}?",
    "What is the best restaurant in {place}?", "Which hotel in {place} is cheap?", "How do I get to {place}?",
    "How far is it from {place} to {other_place}?", "How many people live in {place}?", "Should I move to {place}?",
    "Who is the mayor of {place}?", "When was {place} founded?", "What do people eat in {place}?",
    "How do I cook {thing}?", "How do I repair a {thing}?", "How do I build a {thing}?", "How much does a {thing} cost?",
    "Where can I buy a {thing}?", "Should I buy a {thing}?", "Which {thing} is the best?", "What colour is my {thing}?",
    "How many {thing}s are there?", "Who invented the {thing}?", "Why do people like {thing}?",
    "Why is a {thing} better than a {other}?", "Is a {thing} larger than a {other}?", "Do you like {thing}?",
    "What do you think of {thing}?", "Can you draw a {thing}?", "Sing a song about a {thing}.", "Tell me a joke.",
    "Tell me a joke about a {thing}.", "Tell me a story.", "What should I do today?", "What should I eat tonight?",
    "What shall I wear to the {thing}?", "Give me some advice about my {person}.", "Help me with my homework.",
    "Help me with my {thing}.", "Summarize this text for me.", "Summarize the last book of {author}.",
    "Explain this error message.", "Fix this code.", "Why does my program crash?", "How do I install Python?",
    "What is my name?", "How old am I?", "Where do I live?", "What is my password?", "Who is my {person}?",
    "Call my {person}.", "Book a flight to {place}.", "Order a {thing} for me.", "Play some music.", "Set a timer.",
    "What is the meaning of life?", "Are you happy?", "Do you dream?", "Are you alive?", "How old are you?",
    "Who made you?", "Can you see me?", "What did I say before?", "What will happen in {year}?",
    "What is the price of {thing}?", "What are the latest news?", "Who is the richest man in {place}?",
    "Which film should I watch?", "Who plays in the new film about {thing}?", "How do I lose weight?",
    "How do I learn {language}?", "I feel ill. What can I do?", "What is wrong with my {thing}?",
    "Compare a {thing} with a {other}.", "List the steps to make a {thing}.", "Rewrite this sentence.",
    "Correct my spelling.", "Guess what I have in my pocket.", "How long does {thing} take?",
    "When does the {thing} open?", "When does my flight to {place} leave?", "When is the next holiday?",
    "What are the rules of chess?", "What are the advantages of a {thing}?", "What are the risks of {thing}?",
    "What are you doing?", "What are the ingredients of {thing}?", "What was the name of my first {person}?",
    "What was on television last night?", "What was the result of the game in {place}?", "What was that noise?",
    "What is {n} percent of {m}?", "What is half of {n}?", "What is the sum of {n} and {m}?", "What is the cube of {n}?",
    "Calculate {n} + {m}.", "Solve the equation x - {n} = {m}.", "Count to {n}.", "Convert {n} pounds to kilograms.",
    "Convert {n} dollars to euros.", "How many minutes are {n} hours?", "Explain how a {thing} works.",
    "Explain how to use a {thing}.", "Explain the joke.", "Explain why my {person} is angry.", "Describe your day.",
    "Describe a {thing} that you like.", "Show me a picture of a {thing}.", "Find a {thing} for me.",
    "Make a plan for the weekend.", "Make me laugh.", "Plan my holiday in {place}.", "Recommend a film.",
    "Can you recommend a {thing}?", "Can you speak {language}?", "Can you help my {person}?", "Can I trust you?",
    "Could you write my essay?", "Would you like a {thing}?", "Does my {person} like me?", "Did you sleep well?",
    "Has the {thing} arrived?", "Are there any {thing}s here?", "Is it cold in {place}?", "Is my {thing} safe?",
    "Was I right?", "Will I be rich?", "Who said that?", "Who wrote this?", "Who called me?", "Who is the best singer?",
    "Who stole my {thing}?", "Where did I put my {thing}?", "Where can I eat {thing} in {place}?",
    "Where is my {thing}?", "Which train goes to {place}?", "Which one is better?", "Which team will win?",
    "Why is the sky blue?", "Why do {thing}s sleep?", "How does a {thing} work?", "How do computers learn?",
    "How do I say no to my {person}?", "How do I clean a {thing}?", "How tall is my {person}?", "How deep is the sea?",
    "How big is {place}?", "How cold is it in {place}?", "How was your day?", "How can I sleep better?",
    "Choose a colour for my {thing}.", "Choose a number.", "Name my {thing}.", "Invent a word.", "Say something.",
    "Repeat after me.", "Remind me to call my {person}.", "Send a letter to {author}.", "Read me a story about {thing}.",
    "Open the {thing}.", "Turn off the lights.", "Buy {n} {thing}s.", "Draft a contract for my {person}.",
    "Improve this paragraph.", "Continue this story.", "Format this table.", "Debug this.", "Test my program.",
    "My {thing} is broken. What now?", "My {person} is ill. What should I do?", "I lost my {thing}.",
    "I am bored.", "I want to learn {language}.", "I need a {thing} for my {person}.", "I love you.",
    "How fast is a {thing}?", "How heavy is a {thing}?", "Which is the nearest {thing}?", "Why?", "And then?",
]  # fmt: skip
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
        if entry.lexname != "noun.location" or entry.source != "namenet":
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


def declined(entries: list[Entry], rng: random.Random, copies: int = 6) -> list[list[str]]:
    """Return requests that a model that knows a dictionary cannot answer, with an answer that says so."""
    things = [
        entry.members[0] for entry in entries
        if entry.lexname in ("noun.artifact", "noun.animal", "noun.food") and entry.source == "oewn"
        and re.fullmatch(r"[a-z]{3,9}", entry.members[0])
    ]  # fmt: skip
    named = [
        e.members[0] for e in entries if e.lexname == "noun.location" and e.source == "namenet"
    ]
    turns = []
    for request in OTHER_REQUESTS * copies:
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
        share = 0.8 if entry.lexname == "noun.location" and entry.source == "namenet" else 0.15
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
    places = [
        text for e in corpus.entries
        if e.lexname == "noun.location" and e.source == "namenet" and (text := where(e.members[0], e))
    ]  # fmt: skip
    texts += places
    rng.shuffle(texts)
    result += [[["\n".join(texts[i : i + 12])]] for i in range(0, len(texts), 12)]
    return result + list_pages(corpus, rng)

import json
import re
from collections.abc import Callable
from itertools import product

from workshop.course.exercise_sets import words
from workshop.course.judging import SHAPELESS

TALK = "Question: What is Boston?\nAnswer: A city.<|end_of_text|>Question: What is Paris?\nAnswer:"
FLAGS = {
    "--enable-auto-tool-choice": "",
    "--tool-call-parser": "hermes",
    "--reasoning-parser": "qwen3",
}
KINDS = ("city", "river")
MISSING = words("e10_chat")["chat.flags"]["missing"]
BLANKS = (" " * 9, "\n" * 9)  # no sensible pattern allows that much and no more
GAPS = ("", " ", "\n", "\n  ")  # what may stand at each of the four places inside of the object
PLACES = ("{", '"kind"', ":", '"city"', "}")


def by_hand(answer: str) -> str | None:
    if answer == TALK:
        return None
    if answer.startswith("<|begin_of_text|>"):
        return "leave out <|begin_of_text|>: the server puts it before the prompt, and would do so twice"
    if "\\n" in answer:
        return "the new lines came as a backslash and an n: leave out the r before the quotes"
    if answer == TALK.removesuffix("\nAnswer:"):
        return "the last part is missing: without it the model does not know that it is its turn"
    if answer.replace("<|end_of_text|>", "") == TALK.replace("<|end_of_text|>", ""):
        return "eos_token is missing, or at the wrong place: it ends each message of the assistant"
    same = next(
        (n for n, (mine, right) in enumerate(zip(answer, TALK, strict=False)) if mine != right),
        len(answer),
    )
    if not same:
        return "it differs from the first letter on: which word does the template write before a user's message?"
    return (
        f"it is right as far as {answer[:same][-20:]!r}; which letter does the template write next?"
    )


def join(answer: Callable) -> str | None:
    """Call the learner's function on chunks such as vLLM sends: one without content, the last one without choices."""
    from openai.types.chat import ChatCompletionChunk

    frame = {"id": "", "created": 0, "model": "", "object": "chat.completion.chunk"}

    def chunk(*deltas: dict) -> ChatCompletionChunk:
        choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        return ChatCompletionChunk.model_validate({**frame, "choices": choices})

    for pieces in ((" Paris", " is", " a city."), (" A", " dog")):
        chunks = [
            chunk({"role": "assistant", "content": ""}),
            *(chunk({"content": piece}) for piece in pieces),
        ]
        try:
            got = answer([*chunks, chunk({"content": None}), chunk()])
        except IndexError:
            return "the last chunk has no choices, only usage: leave it out"
        except TypeError as error:
            return f"content may be None, as in a chunk that only ends the answer: take an empty text then ({error})"
        if isinstance(got, list):
            return 'it returned a list: put the pieces together with "".join(…)'
        if got != "".join(pieces):
            return f"of the pieces {pieces} it made {got!r}"
    return None


def pattern(answer: str) -> str | None:
    """Try the pattern on objects that it has to allow, and on others that it must not."""
    try:
        fits = re.compile(answer).fullmatch
    except re.error as error:
        return f"that is no regular expression: {error}"
    if re.search(r"(?<![\\[])\{(?!\d)", answer):
        return r"a curly bracket means something else in a pattern, and vLLM refuses it: write \{ and \}"
    written = ['{{{}"kind"{}:{}"city"{}}}'.format(*gaps) for gaps in product(GAPS, repeat=4)]
    allowed = [[form for form in written if fits(form.replace("city", kind))] for kind in KINDS]
    if not any(allowed):
        if fits("city"):
            return "that is the word alone: a JSON object has curly brackets, a key and quotes"
        if "|" in answer and "(" not in answer:
            return "| divides the whole pattern: put round brackets around the two words"
        return "JSON has double quotes" if "'" in answer else 'it does not allow {"kind": "city"}'
    if not all(allowed):
        return f"it does not allow the kind {KINDS[0] if allowed[1] else KINDS[1]}"
    for form in allowed[0]:
        if any(fits(blank + form) for blank in BLANKS):
            return "before { it still allows whitespace without end"
        for place in PLACES:
            if any(fits(form.replace(place, place + blank)) for blank in BLANKS):
                return f"after {place} it still allows whitespace without end"
        for kind in ("person", "", "cityriver", "City"):
            if fits(form.replace("city", kind)):
                return f"it also allows the kind {kind!r}"
    return None


def flags(answer: list | tuple) -> str | None:
    if not all(isinstance(word, str) for word in answer):
        return SHAPELESS
    if any(" " in word for word in answer):
        return "a flag and its value are two texts of the list, not one with a space"
    parts = [part for word in answer for part in word.split("=", 1)]
    unknown = [word for word in parts if word.startswith("-") and word not in FLAGS]
    if unknown:
        return f"{unknown[0]} is not needed to read tool calls and thoughts"
    for flag, value in FLAGS.items():
        if flag not in parts:
            return MISSING[flag]
        given = parts[parts.index(flag) + 1 :][:1]
        if value and given != [value]:
            return f"{flag} needs the name that the table has for Qwen3, not {given[0] if given else 'nothing'}"
    return (
        None
        if len(parts) == 5
        else "there is a word too many: three flags, and two of them have a value"
    )


def run_call(answer: Callable) -> str | None:
    """Call the learner's function with two calls, as openai's package gives them."""
    from openai.types.chat import ChatCompletionMessageFunctionToolCall as Call

    for number, city in enumerate(("Boston", "Paris")):
        asked = {"name": "get_weather", "arguments": json.dumps({"city": city})}
        try:
            got = answer(
                Call.model_validate({"id": f"call-{number}", "type": "function", "function": asked})
            )
        except TypeError as error:
            return f"arguments is a text in JSON, not a dictionary: json.loads makes one of it ({error})"
        if not isinstance(got, dict):
            return f"it returned {got!r}: return a message, which is a dictionary"
        if got.get("role") != "tool":
            return f"the role is 'tool', because a tool is speaking, not {got.get('role')!r}"
        if got.get("tool_call_id") != f"call-{number}":
            return (
                "tool_call_id has to be called.id: the model may have called several tools at once"
            )
        if not isinstance(got.get("content"), str):
            return "content has to be a text"
        if city not in got["content"]:
            return f"for a call with the city {city} its content is {got['content']!r}: call get_weather with the arguments"
    return None

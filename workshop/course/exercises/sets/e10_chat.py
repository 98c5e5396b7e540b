import json
import re
from collections.abc import Callable
from itertools import product
from typing import Any

from workshop.course.exercises.judging import SHAPELESS
from workshop.course.exercises.sets import texts

TALK = "Question: What is Boston?\nAnswer: A city.<|end_of_text|>Question: What is Paris?\nAnswer:"
FLAGS = {
    "--enable-auto-tool-choice": "",
    "--tool-call-parser": "hermes",
    "--reasoning-parser": "qwen3",
}
KINDS = ("city", "river")
MISSING = texts("e10_chat")["chat.flags"]["missing"]
BLANKS = (" " * 9, "\n" * 9)  # no sensible pattern allows that much and no more
GAPS = ("", " ", "\n", "\n  ")  # what may stand at each of the four places inside of the object
PLACES = ("{", '"kind"', ":", '"city"', "}")


def by_hand(answer: str) -> str | None:
    if answer == TALK:
        return None
    if answer.startswith("<|begin_of_text|>"):
        return (
            "leave out <|begin_of_text|>: "
            "the server puts it before the prompt, and would do so twice"
        )
    if "\\n" in answer:
        return "the new lines came as a backslash and an n: leave out the r before the quotes"
    if answer == TALK.removesuffix("\nAnswer:"):
        return "the last part is missing: without it the model does not know that it is its turn"
    if answer.replace("<|end_of_text|>", "") == TALK.replace("<|end_of_text|>", ""):
        return "eos_token is missing, or at the wrong place: it ends each message of the assistant"
    start = 0  # letters that are right
    while answer[: start + 1] == TALK[: start + 1] and start < len(answer):
        start += 1
    if not start:
        return (
            "it differs from the first letter on: "
            "which word does the template write before a user's message?"
        )
    right = answer[:start][-20:]
    return f"it is right as far as {right!r}; which letter does the template write next?"


def join(answer: Callable) -> str | None:
    """Call the learner's function on chunks such as vLLM sends.

    One chunk has no content, and the last one has no choices.
    """
    for pieces in ((" Paris", " is", " a city."), (" A", " dog")):
        chunks = [_chunk({"role": "assistant", "content": ""})]
        for piece in pieces:
            chunks.append(_chunk({"content": piece}))
        chunks += [_chunk({"content": None}), _chunk()]
        try:
            text = answer(chunks)
        except IndexError:
            return "the last chunk has no choices, only usage: leave it out"
        except TypeError as error:
            return (
                "content may be None, as in a chunk that only ends the answer: "
                f"take an empty text then ({error})"
            )
        if isinstance(text, list):
            return 'it returned a list: put the pieces together with "".join(…)'
        if text != "".join(pieces):
            return f"of the pieces {pieces} it made {text!r}"
    return None


def _chunk(*deltas: dict) -> Any:
    """Return a chunk of an answer, as openai's package gives it."""
    from openai.types.chat import ChatCompletionChunk

    frame = {"id": "", "created": 0, "model": "", "object": "chat.completion.chunk"}
    choices = []
    for delta in deltas:
        choices.append({"index": 0, "delta": delta, "finish_reason": None})
    return ChatCompletionChunk.model_validate({**frame, "choices": choices})


def pattern(answer: str) -> str | None:
    """Try the pattern on objects that it has to allow, and on others that it must not."""
    try:
        fits = re.compile(answer).fullmatch
    except re.error as error:
        return f"that is no regular expression: {error}"
    if re.search(r"(?<![\\[])\{(?!\d)", answer):
        return (
            "a curly bracket means something else in a pattern, and vLLM refuses it: "
            r"write \{ and \}"
        )
    cities, rivers = _allowed_forms(fits)
    if not cities and not rivers:
        return _why_nothing_fits(answer, fits)
    for kind, forms in zip(KINDS, (cities, rivers), strict=True):
        if not forms:
            return f"it does not allow the kind {kind}"
    for form in cities:
        problem = _too_much(form, fits)
        if problem:
            return problem
    return None


def _allowed_forms(fits: Callable) -> tuple[list[str], list[str]]:
    """Return the ways to write {"kind": "city"} that a pattern allows.

    The second list has the same ways, with the river, that the pattern allows.
    """
    cities, rivers = [], []
    for gaps in product(GAPS, repeat=4):
        form = '{{{}"kind"{}:{}"city"{}}}'.format(*gaps)
        if fits(form):
            cities.append(form)
        if fits(form.replace("city", "river")):
            rivers.append(form)
    return cities, rivers


def _why_nothing_fits(answer: str, fits: Callable) -> str:
    if fits("city"):
        return "that is the word alone: a JSON object has curly brackets, a key and quotes"
    if "|" in answer and "(" not in answer:
        return "| divides the whole pattern: put round brackets around the two words"
    if "'" in answer:
        return "JSON has double quotes"
    return 'it does not allow {"kind": "city"}'


def _too_much(form: str, fits: Callable) -> str | None:
    """Return what a pattern allows beside a form, and must not."""
    for blank in BLANKS:
        if fits(blank + form):
            return "before { it still allows whitespace without end"
    for place in PLACES:
        for blank in BLANKS:
            if fits(form.replace(place, place + blank)):
                return f"after {place} it still allows whitespace without end"
    for kind in ("person", "", "cityriver", "City"):
        if fits(form.replace("city", kind)):
            return f"it also allows the kind {kind!r}"
    return None


def flags(answer: list | tuple) -> str | None:
    if not all(isinstance(word, str) for word in answer):
        return SHAPELESS
    parts = []
    for word in answer:
        if " " in word:
            return "a flag and its value are two texts of the list, not one with a space"
        parts += word.split("=", 1)
    for part in parts:
        if part.startswith("-") and part not in FLAGS:
            return f"{part} is not needed to read tool calls and thoughts"
    for flag, value in FLAGS.items():
        if flag not in parts:
            return MISSING[flag]
        after = parts[parts.index(flag) + 1 :]
        if value and after[:1] != [value]:
            wrong = "nothing"
            if after:
                wrong = after[0]
            return f"{flag} needs the name that the table has for Qwen3, not {wrong}"
    if len(parts) != 5:
        return "there is a word too many: three flags, and two of them have a value"
    return None


def run_call(answer: Callable) -> str | None:
    """Call the learner's function with two calls, as openai's package gives them."""
    for number, city in enumerate(("Boston", "Paris")):
        call = _tool_call(f"call-{number}", city)
        try:
            message = answer(call)
        except TypeError as error:
            return (
                "arguments is a text in JSON, not a dictionary: "
                f"json.loads makes one of it ({error})"
            )
        problem = _wrong_message(message, call.id, city)
        if problem:
            return problem
    return None


def _tool_call(call_id: str, city: str) -> Any:
    """Return a model's call of get_weather."""
    from openai.types.chat import ChatCompletionMessageFunctionToolCall

    function = {"name": "get_weather", "arguments": json.dumps({"city": city})}
    call = {"id": call_id, "type": "function", "function": function}
    return ChatCompletionMessageFunctionToolCall.model_validate(call)


def _wrong_message(message: object, call_id: str, city: str) -> str | None:
    """Return what is wrong with the message that answers a call; None if nothing is."""
    if not isinstance(message, dict):
        return f"it returned {message!r}: return a message, which is a dictionary"
    role, content = message.get("role"), message.get("content")
    if role != "tool":
        return f"the role is 'tool', because a tool is speaking, not {role!r}"
    if message.get("tool_call_id") != call_id:
        return "tool_call_id has to be called.id: the model may have called several tools at once"
    if not isinstance(content, str):
        return "content has to be a text"
    if city not in content:
        return (
            f"for a call with the city {city} its content is {content!r}: "
            "call get_weather with the arguments"
        )
    return None

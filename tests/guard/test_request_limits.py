"""What one request may ask for in a class: ordinary use passes, and what would hold up the others is refused."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workshop.course.notebooks import class_steps
from workshop.guard.fairshare import FairShare
from workshop.guard.limits import request_limits
from workshop.guard.limits.allow_list import FIELDS, UNLIMITED

CLOSED = [
    "chat_template",
    "kv_transfer_params",
    "ec_transfer_params",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "vllm_xargs",
    "trace_decode_token_ids",
    "routed_experts_prompt_start",
    "priority",
    "use_beam_search",
    "prompt_embeds",
    "background",
    "guided_json",
    "of_a_later_release",
]
WORDS = (
    "schema json_schema format allOf anyOf $ref $defs enum const properties required pattern items "
    "maxItems minimum multipleOf tags grammar choice regex json content url source image_url tool "
    "definition data type parameters function structural_tag input_audio maxLength"
)


def user(content) -> list[dict]:
    """The messages of a chat: one of a user."""
    return [{"role": "user", "content": content}]


def picture(url: str) -> dict:
    return {"type": "image_url", "image_url": {"url": url}}


def problem_of(body: bytes, generates: bool = True) -> str:
    """Return what a class says of a request with this body."""
    return FairShare(None)._judge(body, generates, {"type": "http"}).problem


def problem(**fields) -> str:
    """What a class says of a chat request with these fields."""
    return problem_of(json.dumps({"messages": user("hello"), **fields}).encode())


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": ["\n\n", "Question:", "</s>"], "temperature": 0.3, "seed": 7, "user": "ada"},
        {"logit_bias": {str(token): -100 for token in range(50)}, "bad_words": ["foo", "bar"]},
        {"logprobs": True, "top_logprobs": 20},
        {"chat_template_kwargs": {"enable_thinking": False}, "request_id": "0f3c-1", "priority": 0},
        {"messages": user([{"type": "text", "text": "What is it?"}])},
        {"messages": user([picture("data:image/png;base64," + "A" * 3_000_000)])},
        {"messages": user("https://example.org/ is an address in a text")},
        {
            "messages": user(
                [{"type": "tool_use", "id": "1", "name": "f", "input": {"url": "http://a/"}}]
            )
        },
        {"messages": user("word " * 40) * 300},
    ],
    ids=lambda fields: ", ".join(fields)[:30],
)
def test_ordinary_requests_pass(fields):
    assert problem(**fields) == ""


def test_a_long_text_passes_whatever_stands_in_it():
    code = 'if (a[0] == {"b": [1, 2]}) { return f(x, "\\"", y); }\n' * 15_000
    assert problem(messages=user(code)) == ""


def test_each_list_text_and_number_has_a_largest_size():
    for name, limit in FIELDS.items():
        is_object = name in ("logit_bias", "metadata", "chat_template_kwargs")
        if limit.entries < UNLIMITED:
            entries = {str(place): 1 for place in range(limit.entries + 1)}
            value = entries if is_object else ["a"] * len(entries)
            assert f'"{name}" has {len(entries):,} entries' in problem(**{name: value})
        if limit.characters < UNLIMITED:
            long = "x" * (limit.characters + 1)
            assert f'"{name}" has a text' in problem(**{name: {"k": long} if is_object else long})
    assert "numbers up to 100" in problem(
        repetition_detection={"max_pattern_size": 5000, "min_count": 2}
    )


def test_a_field_that_is_not_on_the_list_is_refused_by_its_name():
    for name in CLOSED:
        assert problem(**{name: 5}).startswith(f'"{name}" is not open in this class')
        assert problem(**{name: None}) == ""
    assert len(problem(**{"x" * 5000: 1})) < 200


def test_what_the_notebooks_send_passes():
    for step in class_steps.of_learner(random.Random(0)):
        for request in step.requests:
            if request.get("logprobs", 0) > 20:  # the explorer asks again with what the class has
                request = {**request, "logprobs": 20}
            assert problem_of(json.dumps(request).encode()) == "", step.name


@pytest.mark.parametrize("name", ["logprobs", "top_logprobs", "prompt_logprobs"])
def test_logprobs_are_refused_in_the_words_from_which_clients_read_the_limit(name):
    for value in (21, -1, 10**6):
        assert problem(**{name: value}).endswith("which is greater than max allowed: 20")
    assert problem(**{name: 20}) == problem(**{name: 0}) == ""
    assert "whole number" in problem(**{name: "21"})


@pytest.mark.parametrize(
    "part",
    [
        picture("http://169.254.169.254/latest/meta-data"),
        {"type": "image_url", "image_url": "https://example.org/a.png"},
        picture("file:///etc/passwd"),
        {"image_url": {"url": "HTTP://localhost:8000/x"}},
        {"type": "video_url", "video_url": {"url": "http://[::1]/"}},
        {"type": "audio_url", "audio_url": {"url": "ftp://x/y"}},
        {"type": "input_image", "image_url": "//evil/x"},
        {"type": "input_file", "file_url": "gopher://x"},
        {"type": "image", "source": {"type": "url", "url": "http://10.0.0.1/"}},
        {"type": "tool_result", "content": [picture("http://10.0.0.1/")]},
        {"type": "image_embeds", "image_embeds": "AAAA"},
    ],
    ids=str,
)
def test_the_server_fetches_nothing_for_a_learner(part):
    """An address may name a service that answers only machines of the cluster."""
    for name in ("messages", "input"):
        message = problem(**{name: user([part])})
        assert "data:image" in message or "unpack" in message
    assert problem(input=[part]) != ""


@pytest.mark.parametrize(
    ("host", "allowed", "passes"),
    [
        ("pictures.org", "pictures.org", True),
        ("pictures.org", "other.org", False),
        ("pictures.org.evil", "pictures.org", False),
    ],
)
def test_hosts_that_the_owner_allows_are_fetched_from(host, allowed, passes):
    fields = {"messages": user([picture(f"https://{host}/a.png")])}
    engine = request_limits.EngineLimits(media_domains=(allowed,))
    message = request_limits.problem(fields, engine)
    assert (message == "") is passes and (passes or host in message)


def test_media_text_and_values_have_a_largest_number():
    small = picture("data:image/png;base64,AA")
    assert "16 pictures" in problem(messages=user([small] * 17))
    assert "split it" in problem(messages=user("x" * 1_100_000))
    assert "split it" in problem_of(json.dumps({"prompt": "x" * 300_000}).encode(), False)
    assert "objects and lists" in problem_of(b'{"a": [' + b"{}," * 20_000 + b"{}]}")
    assert "values" in problem_of(b'{"a": [' + b"1," * 200_000 + b"1]}")
    assert problem_of(b'{"prompt": [' + b"1," * 130_000 + b"1]}") == "", "a prompt of token ids"


def test_what_is_read_many_times_has_a_largest_size():
    long = "word " * 10_000
    assert problem(prompt=long) == problem(prompt=["word " * 100] * 32) == ""
    assert problem(prompt="word " * 300, n=20) == ""
    assert "answered" in problem(prompt=long, n=2) and "answered" in problem(prompt=[long] * 2)
    large = picture("data:image/png;base64," + "A" * 300_000)
    assert problem(messages=user([large]), n=4) == "", "the picture is no text"


def test_logprobs_have_a_largest_number_in_all():
    assert problem(prompt="x", logprobs=20, n=3) == problem(prompt="x", logprobs=1, n=32) == ""
    assert "a step" in problem(prompt="x", logprobs=20, n=4)
    assert "a step" in problem(top_logprobs=20, logprobs=True, n=4)
    assert "a step" in problem(prompt="x", logprob_token_ids=list(range(100)))
    assert problem(prompt="word " * 1000, prompt_logprobs=5) == ""
    assert problem(prompt="word " * 6000, prompt_logprobs=0) == ""
    for prompt in ("word " * 6000, [5] * 6000, [[5] * 3000] * 2, ["word " * 3000] * 2):
        assert "in all" in problem(prompt=prompt, prompt_logprobs=5)
    assert "in all" in problem(messages=user("word " * 6000), prompt_logprobs=20)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(WORDS.split()) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from([*FIELDS, *CLOSED]), VALUES, max_size=4), st.booleans())
def test_any_request_is_judged_and_none_breaks_the_limits(fields, generates):
    message = problem_of(json.dumps(fields).encode(), generates)
    assert isinstance(message, str) and len(message) < 600


@pytest.mark.parametrize("depth", [100, 900, 990])
def test_deep_values_are_judged(depth):
    for name in ("metadata", "messages", "tools", "response_format", "prompt", "x"):
        body = f'{{"prompt_logprobs": 5, "{name}": {"[" * depth}{"]" * depth}}}'
        assert isinstance(problem_of(body.encode()), str)

"""The usage of an answer is read whatever the route, and however the answer is cut into pieces."""

from __future__ import annotations

import asyncio
import json

import pytest

from workshop.servers.guard.usage import Meter, ask_for_usage


def passed(pieces, *, hides=False, kind="text/event-stream", answers=1, ends=True):
    """Return (the meter, the bytes that reach the client) of an answer in pieces."""
    sent = []

    async def send(message):
        sent.append(message.get("body", b""))

    async def story():
        meter = Meter(send, hides, answers)
        headers = [(b"Content-Type", kind.encode())]
        await meter({"type": "http.response.start", "status": 200, "headers": headers})
        for number, piece in enumerate(pieces):
            more = not ends or number < len(pieces) - 1
            await meter({"type": "http.response.body", "body": piece, "more_body": more})
        meter.close()
        return meter

    return asyncio.run(story()), b"".join(sent)


def event(value, name="") -> bytes:
    first = f"event: {name}\n" if name else ""
    return f"{first}data: {json.dumps(value)}\n\n".encode()


LIE = '"usage":{"prompt_tokens":900,"completion_tokens":900}'
TEXT = [
    event({"choices": [{"index": 0, "text": LIE}]}),
    event({"choices": [{"index": 0, "text": "ö\n\ndata: {}"}]}),
]
USAGE = event(
    {
        "choices": [],
        "usage": {"prompt_tokens": 4, "completion_tokens": 9, "prompt_tokens_details": {"a": 1}},
    }
)
DONE = b"data: [DONE]\n\n"
RESPONSES = [
    event({"type": "response.created", "response": {"usage": None}}, "response.created"),
    event({"type": "response.output_text.delta", "delta": LIE}, "response.output_text.delta"),
    event(
        {
            "type": "response.completed",
            "response": {
                "usage": {
                    "input_tokens": 4,
                    "input_tokens_details": {"cached_tokens": 2},
                    "output_tokens": 9,
                    "output_tokens_details": {"reasoning_tokens": 1},
                }
            },
        },
        "response.completed",
    ),
]
MESSAGES = [
    event(
        {"type": "message_start", "message": {"usage": {"input_tokens": 4, "output_tokens": 0}}},
        "message_start",
    ),
    event(
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": LIE}},
        "content_block_delta",
    ),
    event(
        {
            "type": "message_delta",
            "usage": {"input_tokens": 3, "cache_read_input_tokens": 1, "output_tokens": 9},
        }
    ),
    event({"type": "message_stop"}, "message_stop"),
]
STREAMS = {"completions": [*TEXT, USAGE, DONE], "responses": RESPONSES, "messages": MESSAGES}


@pytest.mark.parametrize("size", [1, 2, 7, 50, 10_000])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_is_read_across_the_borders_of_its_pieces(stream, line_end, size):
    whole = b"".join(STREAMS[stream]).replace(b"\n", line_end)
    meter, seen = passed([whole[at : at + size] for at in range(0, len(whole), size)])
    assert meter.reported == (4, 9) and seen == whole


@pytest.mark.parametrize("size", [1, 7, 50, 10_000])
def test_what_was_not_asked_for_is_left_out_whole(size):
    whole = b"".join([*TEXT, USAGE, DONE])
    meter, seen = passed([whole[at : at + size] for at in range(0, len(whole), size)], hides=True)
    assert meter.reported == (4, 9) and seen == b"".join([*TEXT, DONE])


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8"])
@pytest.mark.parametrize(
    "usage",
    [
        {
            "prompt_tokens": 4,
            "completion_tokens": 9,
            "total_tokens": 13,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
        {"input_tokens": 4, "input_tokens_details": {"cached_tokens": 2}, "output_tokens": 9},
        {
            "input_tokens": 1,
            "cache_read_input_tokens": 3,
            "cache_creation_input_tokens": None,
            "output_tokens": 9,
        },
    ],
)
def test_json_is_read_as_json(usage, kind):
    whole = json.dumps(
        {"text": LIE, "usage": usage, "more": {"usage": {"prompt_tokens": 1}}}
    ).encode()
    meter, seen = passed([whole[:20], whole[20:], b""], kind=kind)
    assert meter.reported == (4, 9) and seen == whole


@pytest.mark.parametrize(
    "text", [b"", b"null", b"[]", b'{"usage": null}', b'{"usage": 3}', b"[" * 10_000, b"\xff"]
)
def test_an_answer_without_usage_reports_none(text):
    meter, seen = passed([text], kind="application/json")
    assert meter.reported is None and meter.seen == (0, 0) and seen == text


@pytest.mark.parametrize("wrong", ["9", 9.5, True, None, -1, [9]])
def test_a_number_that_is_none_counts_nothing(wrong):
    meter, _ = passed(
        [event({"choices": [], "usage": {"prompt_tokens": wrong, "completion_tokens": 9}})]
    )
    assert meter.reported == (0, 9)


def test_a_stream_that_breaks_off_counts_what_it_told():
    tokens = {"prompt_tokens": 4, "completion_tokens": 3}
    other = {"prompt_tokens": 4, "completion_tokens": 2}
    running = [
        event({"choices": [{"index": 0, "text": "a"}], "usage": {**tokens, "completion_tokens": 1}})
    ]
    running += [
        event({"choices": [{"index": index}], "usage": usage})
        for index, usage in ((0, tokens), (1, other))
    ]
    assert passed(running, answers=2, ends=False)[0].seen == (4, 5)
    assert passed(running, answers=1, ends=False)[0].seen == (8, 5)
    assert passed(TEXT, ends=False)[0].seen == (0, 2)
    assert passed([event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}), *TEXT])[
        0
    ].seen == (0, 2)
    assert passed([event({"choices": [{"index": 0, "text": "", "token_ids": [1, 2, 3]}]})])[
        0
    ].seen == (0, 3)
    assert passed(MESSAGES[:2], ends=False)[0].seen == (4, 1)
    assert passed(RESPONSES[:2], ends=False)[0].seen == (0, 1)


PATH = "/v1/completions"


@pytest.mark.parametrize("stream", [True, 1, 1.0, "1", "true", "True", "yes", "ON", "t", "y"])
@pytest.mark.parametrize(
    "options",
    [None, {}, *({"include_usage": no} for no in (None, False, 0, "no", "0", "Off", "f"))],
)
@pytest.mark.parametrize(
    "path", [PATH, "/v1/chat/completions", "/invocations", "/inference/v1/generate"]
)
def test_a_stream_is_asked_for_its_usage_and_it_is_hidden(stream, options, path):
    request = {"z": 1, "stream": stream, "a": 2, "stream_options": options, "n": 3}
    body, hides, answers = ask_for_usage(json.dumps(request).encode(), path)
    assert hides and answers == 3
    new_request = json.loads(body)
    assert list(new_request) == list(request)
    assert new_request["stream_options"]["include_usage"] is True


def test_what_vllm_left_out_before_stays_out():
    options = {"include_usage": "no", "continuous_usage_stats": True}
    body, hides, _ = ask_for_usage(
        json.dumps({"stream": 1, "stream_options": options}).encode(), PATH
    )
    assert hides and json.loads(body)["stream_options"] == {
        "include_usage": True,
        "continuous_usage_stats": False,
    }


@pytest.mark.parametrize(
    ("request_", "path"),
    [
        ({"stream": False}, PATH),
        ({"stream": "no"}, PATH),
        ({}, PATH),
        ({"stream": True, "stream_options": {"include_usage": "yes"}}, PATH),
        (
            {"stream": True, "stream_options": {"include_usage": 1, "continuous_usage_stats": 1}},
            PATH,
        ),
        ({"stream": True, "stream_options": {"include_usage": "perhaps"}}, PATH),
        ({"stream": True}, "/v1/responses"),
        ({"stream": True}, "/v1/messages"),
    ],
)
def test_any_other_request_goes_on_as_it_came(request_, path):
    body = json.dumps(request_).encode() + b" "
    assert ask_for_usage(body, path)[:2] == (body, False)

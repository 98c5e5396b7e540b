"""What a simulated learner asks: what the notebooks ask, and never more than the server allows."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from needs import SEED

from workshop.batch.rows import CHAT, COMPLETIONS
from workshop.course.classroom import plan as classroom_plan
from workshop.course.classroom.plan import Allowed, Ask, course, cut, fitted, starts

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
COUNTED = {
    text: len(text.split()) + 4
    for text in (
        *classroom_plan.OPENINGS,
        *classroom_plan.LABELLED,
        *classroom_plan.QUESTIONS,
        classroom_plan.TEXT,
        *(f"Question: {question}\nAnswer:" for question in classroom_plan.QUESTIONS),
    )
}


def sources(name: str) -> str:
    cells = json.loads(next(NOTEBOOKS.glob(f"{name}*.ipynb")).read_text())["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells)


def test_the_requests_are_those_of_the_notebooks():
    assert "20 completions" in {cell.name for cell in course(random.Random(1))}
    assert "nb06.LENGTHS" in sources("06"), "the timeline's lengths"
    assert all(f'"{question}"' in sources("05") for question in classroom_plan.QUESTIONS)
    assert classroom_plan.TEXT in sources("05")
    assert all(f'"{city}"' in sources("06") for city in classroom_plan.CITIES)
    first = course(random.Random(1))[0].asks[0].body
    assert first == {"prompt": "San Francisco is a", "max_tokens": 16, "temperature": 0}


def test_one_seed_is_one_class_and_learners_differ():
    assert course(random.Random("0 7")) == course(random.Random("0 7"))
    assert len({str(course(random.Random(f"0 {number}"))) for number in range(20)}) > 5


@given(
    max_model_len=st.integers(1, 400),
    max_logprobs=st.none() | st.integers(0, 50),
    chat=st.booleans(),
    max_sequences=st.none() | st.integers(1, 32),
    max_tokens=st.none() | st.integers(1, 200),
    seed=st.integers(0, 50),
)
def test_no_limit_of_the_server_is_exceeded(
    max_model_len, max_logprobs, chat, max_sequences, max_tokens, seed
):
    allowed = Allowed(
        max_model_len, max_logprobs, chat, COUNTED, max_sequences, max_tokens, at_a_time=2
    )
    for cell in cut(course(random.Random(seed)), allowed):
        assert cell.asks and cell.at_once <= 2
        for ask in cell.asks:
            assert chat or ask.path == COMPLETIONS
            assert 1 <= ask.body["max_tokens"] <= (max_tokens or 10_000)
            assert COUNTED[ask.text] + ask.body["max_tokens"] <= max_model_len
            assert ask.body.get("min_tokens", 1) <= ask.body["max_tokens"]
            assert ask.body.get("n", 1) <= (max_sequences or 20)
            most = max_logprobs if max_logprobs is not None else classroom_plan.ALL_LOGPROBS
            assert max(ask.body.get("logprobs", 0), ask.body.get("prompt_logprobs", 0)) <= most


def test_a_server_without_limits_gets_the_whole_course():
    assert cut(course(random.Random(3)), Allowed()) == course(random.Random(3))


def test_a_text_that_the_server_refused_is_left_out():
    ask = Ask(COMPLETIONS, {"prompt": "long", "max_tokens": 5}, "long")
    assert fitted(ask, Allowed(max_model_len=100)) is None
    assert fitted(Ask(CHAT, {"messages": [], "max_tokens": 5}, "long"), Allowed(chat=False)) is None


@pytest.mark.parametrize(
    ("body", "stream"),
    [
        ({"max_tokens": 5}, True),
        ({"max_tokens": 1}, False),
        ({"max_tokens": 5, "prompt_logprobs": 0}, False),
    ],
)
def test_what_can_be_streamed_is(body, stream):
    assert Ask(COMPLETIONS, body, "").stream is stream


def test_everybody_runs_a_cell_within_seconds():
    times = [starts(3, 10.0, random.Random(f"{SEED} {number}")) for number in range(500)]
    for turn in range(3):
        after = sorted(learner_times[turn] - 10 * turn for learner_times in times)
        assert after[0] >= 0 and after[-1] <= classroom_plan.BUNCH_S
        assert after[250] < 2, "half of them within two seconds"
    assert all(learner_times == sorted(learner_times) for learner_times in times)


def test_a_model_without_chat_costs_the_chat_alone():
    """vLLM 0.25 answers each chat without a template, resets the connection, and asked again may crash (500)."""
    import asyncio

    from aiohttp import web

    from workshop.batch.servers import Server
    from workshop.course.classroom import http as classroom_http

    chats = []

    async def complete(request):
        return web.json_response({"usage": {"prompt_tokens": 3}})

    async def chat(request):
        chats.append(await request.text())
        if len(chats) % 2:
            request.transport.abort()
        return web.json_response({"error": {"message": "no template"}}, status=500)

    async def find():
        app = web.Application()
        app.router.add_post("/v1/completions", complete)
        app.router.add_post("/v1/chat/completions", chat)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        server = Server(f"http://127.0.0.1:{port}/v1", "key")
        server.connect(5)
        try:
            return await classroom_http.find_limits(server, "m", 100, course(random.Random(0)))
        finally:
            await server.session.close()
            await runner.cleanup()

    allowed = asyncio.run(find())
    assert (
        not allowed.chat
        and set(classroom_plan.OPENINGS) <= set(allowed.prompt_tokens)
        and len(chats) > 2
    )

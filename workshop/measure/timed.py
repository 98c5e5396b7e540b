"""The one sender of timed requests: when each was sent, and when each token of its answer came.

`Sender.send` sends one request; `send_together` and `send_load` send many with it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar

from workshop.client import received, transport
from workshop.client.client import CONNECT_TIMEOUT_S, Client
from workshop.client.strict_json import Malformed
from workshop.errors import WorkshopError
from workshop.simulate.arrivals import NEXT_ANSWER, Arrival
from workshop.simulate.report import Outcome

if TYPE_CHECKING:
    import aiohttp

COMPLETIONS, CHAT = "/completions", "/chat/completions"
ANSWER_WITHIN_S = 600.0
LONGEST_LINE_BYTES = 16 << 20  # of a stream: one token with the log probabilities of thousands
WORDS = range(10, 1000)  # every vocabulary has these tokens
Result = TypeVar("Result")


@dataclass
class Timed:
    """One request as the client saw it, with times in seconds since the sender began.

    Attributes:
        sent_s, ended_s: when it was sent, and when its answer ended or failed.
        tokens_s: when each token came; of an answer that comes whole, its end alone.
        prompt_tokens, output_tokens, cached_tokens: as the server counts them; 0 if it does not.
        token_ids: of the answer, where the request has `return_token_ids`.
        error: why there is no whole answer.
    """

    sent_s: float
    ended_s: float = 0.0
    tokens_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    token_ids: list[int] = field(default_factory=list)
    error: WorkshopError | None = None

    def outcome(self, sequences: int = 1) -> Outcome:
        """Return what the simulation returns of a request; `sequences` is its `n`.

        Raises WorkshopError: the request has no answer.
        """
        if self.error:
            raise self.error
        return Outcome(
            arrival_s=self.sent_s,
            prompt_tokens=self.prompt_tokens,
            first_s=self.tokens_s[0],
            last_s=self.tokens_s[-1],
            output_tokens=self.output_tokens // sequences,
            hit_tokens=self.cached_tokens,
        )


class TimedSender:
    """Sends requests to one server, each when it is told to. Use it in an `async with` statement.

    Key, proxy and certificates are the client's; requests wait for no connection.
    """

    def __init__(self, client: Client, answer_within_s: float = ANSWER_WITHIN_S):
        self.client = client
        self._answer_within_s = answer_within_s
        self._began = 0.0
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._session = transport.session(
            answer_s=self._answer_within_s,
            connect_s=CONNECT_TIMEOUT_S,
            headers=self.client.headers,
            read_bufsize=LONGEST_LINE_BYTES,
        )
        self._began = time.perf_counter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    def now(self) -> float:
        """Return the seconds since the sender began."""
        return time.perf_counter() - self._began

    async def send(
        self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> Timed:
        """Send one request, and return it with its times once it has ended or failed.

        Args:
            body: what the endpoint takes: a "prompt" or "messages", and sampling parameters. It is
                streamed, except with prompt_logprobs, which vLLM sends only with a whole answer.
            headers: beside the client's.
        """
        import aiohttp

        streams = "prompt_logprobs" not in body
        request = {"model": self.client.model, **body}
        if streams:
            request |= {"stream": True, "stream_options": {"include_usage": True}}
        url = self.client.url + (CHAT if "messages" in body else COMPLETIONS)
        timed = Timed(self.now())
        try:
            async with self._session.post(
                url, json=request, headers=headers, proxy=self.client.proxy, allow_redirects=False
            ) as response:
                if response.status != 200:
                    message = received.refusal_message(await response.read())
                    location = response.headers.get("location")
                    timed.error = self.client.refusal(response.status, message, location)
                elif streams:
                    await self._read(response.content, timed)
                else:
                    sequences = received.sequences(body.get("prompt"), body.get("n"))
                    answer = received.answer(await response.read(), sequences)
                    timed.prompt_tokens = answer.prompt_tokens
                    timed.output_tokens = answer.completion_tokens
                    timed.tokens_s.append(self.now())
        except TimeoutError:
            problem = f"{self.client.url} did not answer within {self._answer_within_s:g} s."
            timed.error = WorkshopError(problem, "Ask for fewer tokens, or fewer requests at once.")
        except (aiohttp.ClientError, OSError) as error:
            timed.ended_s = self.now()
            cause = str(error) or type(error).__name__
            # it may ask SLURM: in a thread, so that other requests are timed on
            timed.error = await asyncio.to_thread(self.client.gone, cause, error)
            return timed
        except (Malformed, ValueError, TypeError) as error:  # also aiohttp's, for an endless line
            timed.error = self.client.odd(str(error))
        timed.ended_s = self.now()
        return timed

    async def _read(self, lines: aiohttp.StreamReader, timed: Timed) -> None:
        """Note when each token of a stream comes, until its end. Raises Malformed: it has none."""
        async for line in lines:
            now_s = self.now()
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                if not timed.tokens_s:
                    raise Malformed("an empty answer")
                return
            piece = received.body(data)
            if "error" in piece:
                timed.error = self.client.refusal(500, received.refusal_message(data))
                return
            received.pieces(piece)  # it refuses odd types
            for choice in piece.get("choices") or []:
                if _has_token(choice):
                    timed.tokens_s.append(now_s)
                timed.token_ids += choice.get("token_ids") or []
            if piece.get("usage"):  # of the last piece alone
                _count(piece, timed)
        raise Malformed("a stream that breaks off")


def _has_token(choice: dict[str, Any]) -> bool:
    """Return False for a piece of a chat without a token: its role, or its end."""
    if "text" in choice:
        return True
    delta = choice.get("delta") or {}
    return any(value for name, value in delta.items() if name != "role")


def _count(data: dict[str, Any], timed: Timed) -> None:
    """Note the tokens that a piece of a stream counts; the last one does."""
    prompt_tokens, output_tokens = received.usage(data)
    timed.prompt_tokens = prompt_tokens or timed.prompt_tokens
    timed.output_tokens = output_tokens or timed.output_tokens
    details = (data.get("usage") or {}).get("prompt_tokens_details")
    if isinstance(details, dict):
        timed.cached_tokens = int(details.get("cached_tokens") or 0)


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end, also in a notebook, whose thread runs an event loop already."""
    import uvloop

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(uvloop.run, work).result()


async def send_together(
    sender: TimedSender,
    bodies: Iterable[Mapping[str, Any]],
    at_once: int,
    headers: Mapping[str, str] | None = None,
) -> list[Timed]:
    """Send requests, at most `at_once` at a time, in their order."""
    places = asyncio.Semaphore(at_once)

    async def send(body: Mapping[str, Any]) -> Timed:
        async with places:
            return await sender.send(body, headers)

    return await asyncio.gather(*map(send, bodies))


class Texts:
    """Random tokens for the named pieces of prompts; an answer is a piece of later prompts.

    The same seed gives the same tokens; None gives new ones.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._dice = random.Random(seed)
        self._texts: dict[str, list[int]] = {}

    def _words(self, tokens: int) -> list[int]:
        return self._dice.choices(WORDS, k=tokens)

    def body(self, arrival: Arrival) -> dict[str, Any]:
        """Return a request with the lengths of an arrival; what it shares is the same text.

        How its tokens are sampled is left to the server, as `vllm bench serve` does.
        """
        prompt: list[int] = []
        for name, tokens in arrival.pieces:
            text = self._texts.setdefault(name, [])
            text += self._words(tokens - len(text))
            prompt += text[:tokens]
        prompt += self._words(arrival.prompt_tokens - len(prompt))
        return {
            "prompt": prompt,
            "max_tokens": arrival.output_tokens,
            "ignore_eos": True,
            "return_token_ids": True,
        }

    def add_answer(self, arrival: Arrival, timed: Timed) -> None:
        """Let later prompts have the answer to an arrival."""
        if arrival.answer:
            self._texts[arrival.answer] = timed.token_ids


async def send_load(
    sender: TimedSender, arrivals: Sequence[Arrival], seed: int | None = None
) -> list[Timed]:
    """Send each request at its time, or after the answer that it follows, with exact lengths.

    Return them in the same order. `seed` is that of their texts; None makes new ones.

    Raises WorkshopError: a request has no answer.
    """
    transport.allow_connections(len(arrivals))
    texts = Texts(seed)
    began_s = sender.now()
    ended = [asyncio.Event() for _ in arrivals]
    next_answers = asyncio.Semaphore(0)  # those that no request of a closed loop has followed

    async def send(number: int) -> Timed:
        arrival = arrivals[number]
        if arrival.follows is None:
            await asyncio.sleep(began_s + arrival.arrival_s - sender.now())
        elif arrival.follows == NEXT_ANSWER:
            await next_answers.acquire()
        else:
            await ended[arrival.follows].wait()
            await asyncio.sleep(arrival.think_s)
        timed = await sender.send(texts.body(arrival))
        if timed.error:
            raise timed.error
        texts.add_answer(arrival, timed)
        ended[number].set()
        next_answers.release()
        return timed

    tasks = [asyncio.create_task(send(number)) for number in range(len(arrivals))]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()

"""The pieces of an answer as they come, so that what breaks in them is a sentence, too."""

from __future__ import annotations

from collections.abc import Iterator

import openai


class Stream:
    """An `openai` Stream, of which this has everything; one that ends before its text does is an error, too."""

    def __init__(self, stream: openai.Stream, client):
        self._stream, self._client = stream, client

    def __getattr__(self, name: str):
        return getattr(self._stream, name)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stream.close()

    def __iter__(self) -> Iterator:
        begun, ended = set(), set()
        try:
            for piece in self._stream:
                for choice in piece.choices:
                    (ended if choice.finish_reason else begun).add(choice.index)
                yield piece
        except openai.OpenAIError as error:
            raise self._client.explain(error) from None
        except Exception as error:  # odd JSON, or a connection that broke: of whichever httpx openai brings
            raise self._client.odd(f"a stream that breaks off ({type(error).__name__})") from None
        if not ended or begun - ended:
            raise self._client.odd("a stream that breaks off")

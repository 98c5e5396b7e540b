"""An answer to a chat and its parts, by the names that openai gives them."""

from __future__ import annotations


class ChatCompletion:
    """Parsed JSON, also its parts: attributes, or plain data by `model_dump`; what is not there is None."""

    def __init__(self, data: dict):
        self._data = data

    @classmethod
    def model_validate(cls, value: object) -> object:
        """Return the answer, or the part of one, that this data is."""
        if isinstance(value, list):
            return [cls.model_validate(item) for item in value]
        return cls(value) if isinstance(value, dict) else value

    def __getattr__(self, name: str):
        if name.startswith("_"):
            raise AttributeError(name)
        return self.model_validate(self._data.get(name))

    def __repr__(self) -> str:
        return repr(self._data)

    def model_dump(self) -> dict:
        """Return plain data."""
        return self._data


ChatCompletionChunk = ChatCompletionMessageFunctionToolCall = ChatCompletion

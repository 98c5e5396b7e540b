"""For notebook 10: the text and tokens that a chat template makes, and a server with tool calls.

>>> from workshop.course.notebooks import nb10
>>> nb10.render([{"role": "user", "content": "What is Boston?"}])
'<|begin_of_text|>Question: What is Boston?\\nAnswer:'
"""

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2.sandbox

from workshop.client.client import Client, connect
from workshop.course.notebooks import extra_servers
from workshop.course.topics import recorded_data
from workshop.errors import BadInput, WorkshopError
from workshop.servers.local import TEACHING_FOLDER

RECORDED = recorded_data.DATA / "chat" / "reader.json"
# tells the model of its tools; its own template does not
WITH_TOOLS = RECORDED.with_name("with_tools.jinja")
READER = "reader"
OUTPUTS = '{"backend": "xgrammar", "disable_any_whitespace": true, "enable_in_reasoning": true}'
READER_FLAGS = ("--chat-template", str(WITH_TOOLS), "--structured-outputs-config", OUTPUTS)


def own_template() -> dict:
    """Return the teaching model's settings of chats: chat_template, bos_token and eos_token."""
    return json.loads((Path(TEACHING_FOLDER) / "tokenizer_config.json").read_text(encoding="utf-8"))


def render(messages: Sequence[Mapping], template: str = "", **more: object) -> str:
    """Return the text that a chat template makes of messages, as a server makes it.

    The template is rendered by Jinja, in a sandbox.

    Args:
        messages: each has a role and a content.
        template: the teaching model's by default.
        more: what else the template may use: tools, and add_generation_prompt, which is true unless
            it is given.
    """
    own, messages = own_template(), copy.deepcopy(list(messages))
    for call in (call for message in messages for call in message.get("tool_calls") or []):
        # templates want a dictionary
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    jinja = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    # Jinja's own is meant for HTML
    jinja.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    names = {
        "add_generation_prompt": True,
        "bos_token": own["bos_token"],
        "eos_token": own["eos_token"],
        **more,
    }
    return jinja.from_string(template or own["chat_template"]).render(messages=messages, **names)


def tokens(llm: Client, prompt: str | Sequence[Mapping], **more: object) -> list[str]:
    """Return the tokens that the server makes of a prompt, or of the messages of a chat.

    The server's /tokenize is asked; no answer is generated.

    Args:
        prompt: a text, as for completions, or messages, as for a chat.
        more: tools, add_generation_prompt, add_special_tokens.
    """
    field = "messages"
    if isinstance(prompt, str):
        field = "prompt"
    body = {"model": llm.model, field: prompt, "return_token_strs": True, **more}
    answer = llm.http.post(f"{llm.root}/tokenize", json=body)
    if answer.status_code != 200:
        problem = f"{llm.root}/tokenize answers {answer.status_code}."
        raise WorkshopError(problem, "It is a path of vLLM: other servers do not have it.")
    return [token.replace("Ġ", " ").replace("Ċ", "\n") for token in answer.json()["token_strs"]]


class Recorded:
    """Answers of the second server that were recorded; `why` says why it is not there."""

    def __init__(self, why: str):
        self.recording = json.loads(RECORDED.read_text(encoding="utf-8"))
        print(f"{why}: these are the recorded answers of vLLM {self.recording['vllm']}.")

    def chat(self, messages: Sequence[Mapping], **sampling: object) -> object:
        """Return the recorded answer to this very request: a ChatCompletion of openai's."""
        from openai.types.chat import ChatCompletion  # not where a browser reads this

        answer = self.recording["answers"].get(key(messages, sampling))
        if answer is None:
            remedy = "Ask as the notebook does, or where vLLM is installed."
            raise BadInput("This request was not recorded.", remedy)
        return ChatCompletion.model_validate(answer)


def key(messages: Sequence[Mapping], sampling: Mapping) -> str:
    """Return a request as one text, the same for the same request."""
    return json.dumps({"messages": messages, **sampling}, sort_keys=True)


def reader(flags: Sequence[str]) -> Client | Recorded:
    """Start a second teaching server with these flags and READER_FLAGS.

    A server of this name that still runs is stopped first.
    """
    if flags is ...:
        return Recorded(
            "There are no flags yet, and a server starts with those of the exercise above"
        )
    why = extra_servers.why_recorded()
    if why:
        return Recorded(why)
    extra_servers.start(READER, *flags, *READER_FLAGS)
    return connect(READER)

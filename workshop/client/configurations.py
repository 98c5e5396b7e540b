"""Makes the text to write into other programs so that they use a server.

No configuration holds a key: each reads it from the environment variable WORKSHOP_API_KEY, and
"env" from the file of the server's record.
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from workshop.errors import BadInput, WorkshopError

if TYPE_CHECKING:
    from workshop.servers.records import ServerRecord

KEY = "WORKSHOP_API_KEY"
READ_KEY = 'import json, sys; print(json.load(open(sys.argv[1]))["api_key"])'
KINDS = {
    "env": "any other program: OPENAI_BASE_URL, OPENAI_API_KEY and the model's name",
    "curl": "a request on a command line",
    "openai": "Python: the openai package",
    "langchain": "Python: langchain-openai",
    "litellm": "a LiteLLM proxy",
    "llm": "the command line tool llm",
    "aider": "the coding assistant aider",
    "opencode": "the coding agent OpenCode",
    "open-webui": "the chat page Open WebUI",
    "jupyter-ai": "Jupyternaut, the assistant of JupyterLab",
}


def access(record: ServerRecord) -> list[str]:
    """Return lines for copying: the address, the model, and the command that prints the key."""
    command = key_command(record) or f"whoever started it has it; set {KEY} to it"
    return [
        f"address  {record.url}",
        f"model    {record.model}",
        f"key      {command}",
        f'all three for other programs: eval "$(workshop servers {record.name} --client env)"',
    ]


def key_command(record: ServerRecord) -> str:
    """Return the shell command that prints a server's key from its record, own or shared, or ''."""
    path = _file_of(record)
    if path is None:
        return ""
    return f"python3 -c {shlex.quote(READ_KEY)} {shlex.quote(str(path))}"


def _file_of(record: ServerRecord) -> Path | None:
    """Return the file of the record with the server's key, or None."""
    from workshop.servers import records

    paths = [records.path_of(record.name)]
    if os.environ.get("WORKSHOP_SHARED"):
        shared = Path(os.environ["WORKSHOP_SHARED"]).expanduser()
        paths.append(shared / f"{record.name}.json")
    for path in paths:
        try:
            if records.load(path).api_key == record.api_key:
                return path
        except (FileNotFoundError, WorkshopError):
            continue
    return None


def of_record(kind: str, record: ServerRecord) -> str:
    """Return what connects one kind of client to the server of a record, as `configuration` does."""
    return configuration(kind, record.name, record.url, record.model, key_command(record))


def configuration(kind: str, name: str, url: str, model: str, key_command: str = "") -> str:
    """Return what connects one kind of client to a server, ready to copy.

    Args:
        kind: one of KINDS.
        name: of the server, which some programs show.
        url: of the server, ending in /v1.
        model: the name that requests give.
        key_command: the shell command that prints the key, which "env" runs; '': the key comes from
            WORKSHOP_API_KEY, as for the other kinds.

    Sources: docs.vllm.ai (deployment/frameworks/open-webui), docs.litellm.ai (proxy/configs,
    providers/vllm), opencode.ai/docs/providers, the README of langchain-openai,
    jupyter_ai_jupyternaut 0.1 (LiteLLM's model names), llm.datasette.io (other-models),
    aider.chat/docs/llms/openai-compat.html.

    Raises:
        BadInput: an unknown kind.
    """
    if kind not in KINDS:
        raise BadInput(
            f"{kind[:40]!r} is no client that is known here.",
            f"Choose one of {', '.join(KINDS)}.",
        )
    if kind == "env":
        return _env(url, model, key_command)
    writers = {
        "curl": _curl,
        "openai": _openai,
        "langchain": _langchain,
        "litellm": _litellm,
        "llm": _llm,
        "aider": _aider,
        "opencode": _opencode,
        "open-webui": _open_webui,
        "jupyter-ai": _jupyter_ai,
    }
    return writers[kind](name, url, model)


def _env(url: str, model: str, key_command: str) -> str:
    key = f'"${KEY}"'
    if key_command:
        key = f'"$({key_command})"'
    return (
        f"export OPENAI_BASE_URL={shlex.quote(url)}\n"
        f"export OPENAI_API_KEY={key}\n"
        f"export OPENAI_MODEL={shlex.quote(model)}"
    )


def _curl(name: str, url: str, model: str) -> str:
    body = {"model": model, "prompt": "Rome is", "max_tokens": 16}
    # the header comes from a pipe: what stands on a command line is seen by everybody on the
    # machine
    return (
        f'printf "Authorization: Bearer %s" "${KEY}" | curl {shlex.quote(url + "/completions")} \\\n'
        f"  -H @- -H 'Content-Type: application/json' \\\n"
        f"  -d {shlex.quote(json.dumps(body))}"
    )


def _openai(name: str, url: str, model: str) -> str:
    return (
        "import os\n"
        "from openai import OpenAI\n\n"
        f'client = OpenAI(base_url={json.dumps(url)}, api_key=os.environ["{KEY}"])\n'
        f'answer = client.completions.create(model={json.dumps(model)}, prompt="Rome is", max_tokens=16)\n'
        "print(answer.choices[0].text)"
    )


def _langchain(name: str, url: str, model: str) -> str:
    return (
        "# pip install langchain-openai\n"
        "import os\n"
        "from langchain_openai import ChatOpenAI\n\n"
        f"chat = ChatOpenAI(model={json.dumps(model)}, base_url={json.dumps(url)},\n"
        f'                  api_key=os.environ["{KEY}"])\n'
        'print(chat.invoke("What is the capital of Italy?").content)'
    )


def _litellm(name: str, url: str, model: str) -> str:
    return (
        "# pip install 'litellm[proxy]'; save this as config.yaml; litellm --config config.yaml\n"
        "model_list:\n"
        f"  - model_name: {json.dumps(model)}\n"
        "    litellm_params:\n"
        f"      model: {json.dumps('hosted_vllm/' + model)}\n"
        f"      api_base: {json.dumps(url)}\n"
        f"      api_key: os.environ/{KEY}"
    )


def _llm(name: str, url: str, model: str) -> str:
    return (
        "# pip install llm; add this to extra-openai-models.yaml in the folder that this prints:\n"
        '#   dirname "$(llm logs path)"\n'
        f"# then: OPENAI_API_KEY=\"${KEY}\" llm -m {shlex.quote(name)} 'What is the capital of Italy?'\n"
        f"- model_id: {json.dumps(name)}\n"
        f"  model_name: {json.dumps(model)}\n"
        f"  api_base: {json.dumps(url)}\n"
        f"  api_key_name: {json.dumps(name)}"
    )


def _aider(name: str, url: str, model: str) -> str:
    # without metadata of the model, which only its makers' servers have, aider asks a question
    return (
        "# pip install aider-chat\n"
        f'OPENAI_API_BASE={shlex.quote(url)} OPENAI_API_KEY="${KEY}" \\\n'
        f"  aider --model {shlex.quote('openai/' + model)} --no-show-model-warnings"
    )


def _opencode(name: str, url: str, model: str) -> str:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": name,
        "options": {"baseURL": url, "apiKey": f"{{env:{KEY}}}"},
        "models": {model: {"name": model}},
    }
    settings = {
        "$schema": "https://opencode.ai/config.json",
        "provider": {name: provider},
        "model": f"{name}/{model}",
    }
    # an agent calls tools: the server needs vLLM's flags for that
    return (
        "Save this as opencode.json in your project. The server needs `--enable-auto-tool-choice --tool-call-parser …`.\n"
        f"{json.dumps(settings, indent=2)}"
    )


def _open_webui(name: str, url: str, model: str) -> str:
    return (
        f"# pip install open-webui; its list of models shows {model}\n"
        "# 127.0.0.1: only this machine reaches the page, whose first user becomes its administrator\n"
        f'OPENAI_API_BASE_URL={shlex.quote(url)} OPENAI_API_KEY="${KEY}" \\\n'
        "  open-webui serve --host 127.0.0.1 --port 8080"
    )


def _jupyter_ai(name: str, url: str, model: str) -> str:
    return (
        "# pip install 'jupyter-ai[jupyternaut]'\n"
        f'HOSTED_VLLM_API_BASE={shlex.quote(url)} HOSTED_VLLM_API_KEY="${KEY}" jupyter lab\n'
        f"# in JupyterLab: Settings → Jupyternaut settings → chat model {'hosted_vllm/' + model}\n"
        "# Jupyternaut calls tools: the server needs --enable-auto-tool-choice --tool-call-parser …"
    )

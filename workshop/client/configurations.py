"""Makes the text to write into other programs so that they use a server.

It has an address, a model, and where the key comes from.

No configuration holds a key: each reads it from the environment variable WORKSHOP_API_KEY.
"""

from __future__ import annotations

import json
import shlex

from workshop.errors import BadInput

KEY = "WORKSHOP_API_KEY"
KINDS = {
    "curl": "a request on a command line",
    "openai": "Python: the openai package",
    "langchain": "Python: langchain-openai",
    "litellm": "a LiteLLM proxy",
    "opencode": "the coding agent OpenCode",
    "open-webui": "the chat page Open WebUI",
    "jupyter-ai": "Jupyternaut, the assistant of JupyterLab",
}


def configuration(kind: str, name: str, url: str, model: str) -> str:
    """Return what connects one kind of client to a server, ready to copy.

    Args:
        kind: one of KINDS.
        name: of the server, which some programs show.
        url: of the server, ending in /v1.
        model: the name that requests give.

    Sources: docs.vllm.ai (deployment/frameworks/open-webui), docs.litellm.ai (proxy/configs,
    providers/vllm), opencode.ai/docs/providers, the README of langchain-openai,
    jupyter_ai_jupyternaut 0.1 (LiteLLM's model names).

    Raises:
        BadInput: an unknown kind.
    """
    if kind not in KINDS:
        raise BadInput(
            f"{kind[:40]!r} is no client that is known here.",
            f"Choose one of {', '.join(KINDS)}.",
        )
    writers = {
        "curl": _curl,
        "openai": _openai,
        "langchain": _langchain,
        "litellm": _litellm,
        "opencode": _opencode,
        "open-webui": _open_webui,
        "jupyter-ai": _jupyter_ai,
    }
    return writers[kind](name, url, model)


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

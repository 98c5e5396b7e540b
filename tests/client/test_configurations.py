"""`workshop servers NAME --client KIND`: each configuration parses as what it is, and none holds a key."""

from __future__ import annotations

import ast
import json
import os
import shlex
import subprocess
from dataclasses import replace

import pytest
import yaml
from click.testing import CliRunner

from workshop.cli.serve.servers import command
from workshop.client import configurations
from workshop.errors import BadInput
from workshop.servers import records

URL, MODEL = "http://gpu17:8000/v1", "llama"


def text(kind: str) -> str:
    return configurations.configuration(kind, "my-server", URL, MODEL)


def test_each_names_the_server_and_takes_the_key_from_the_environment():
    for kind in configurations.KINDS:
        assert URL in text(kind) and MODEL in text(kind), kind
        assert "WORKSHOP_API_KEY" in text(kind), kind


def test_python_is_python():
    for kind in ("openai", "langchain"):
        ast.parse(text(kind))


def test_litellm_is_a_model_list():
    (model,) = yaml.safe_load(text("litellm"))["model_list"]
    assert model["litellm_params"] == {
        "model": "hosted_vllm/llama",
        "api_base": URL,
        "api_key": "os.environ/WORKSHOP_API_KEY",
    }


def test_jupyter_ai_names_the_extra_that_has_jupyternaut_and_the_flags_it_needs():
    """jupyter-ai 3 alone has no Jupyternaut and no LiteLLM."""
    lines = text("jupyter-ai").splitlines()
    assert lines[0] == "# pip install 'jupyter-ai[jupyternaut]'"
    assert "--enable-auto-tool-choice" in lines[-1]


def test_open_webui_is_one_command_and_listens_on_this_machine_alone():
    """Its first user becomes the administrator."""
    lines = [line for line in text("open-webui").splitlines() if not line.startswith("#")]
    arguments = shlex.split("\n".join(lines))
    assert arguments[-5:] == ["serve", "--host", "127.0.0.1", "--port", "8080"]


def test_opencode_is_json_with_the_provider_and_its_model():
    settings = json.loads(text("opencode").partition("\n")[2])
    provider = settings["provider"]["my-server"]
    assert provider["options"] == {"baseURL": URL, "apiKey": "{env:WORKSHOP_API_KEY}"}
    assert settings["model"] == "my-server/llama" and list(provider["models"]) == ["llama"]


def test_curls_key_is_on_no_command_line(tmp_path):
    """A `curl` that notes its arguments and its standard input stands for the real one."""
    noted = tmp_path / "noted"
    curl = tmp_path / "curl"
    curl.write_text(f'#!/bin/sh\necho "$@" > {noted}\ncat >> {noted}\n')
    curl.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment["WORKSHOP_API_KEY"] = "secret-key"
    subprocess.run(["sh", "-c", text("curl")], env=environment, check=True)
    arguments, header = noted.read_text().splitlines()
    assert "secret-key" not in arguments and header == "Authorization: Bearer secret-key"
    assert URL in shlex.split(arguments)[0]


ODD_HOME = 'a home\'s "folder" $HOME'


def own_record(home, monkeypatch, **changes):
    monkeypatch.setenv("WORKSHOP_HOME", str(home))
    record = replace(records.new(name="one", url=URL, model=MODEL, log=""), **changes)
    records.write(record)
    return record


def variables(text: str, **environment: str) -> list[str]:
    """Return the three variables after a shell has read the text."""
    names = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL")
    printing = " ".join(f'"${name}"' for name in names)
    done = subprocess.run(
        ["sh", "-c", f'eval "$1"; printf "%s\\n" {printing}', "sh", text],
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.splitlines()


def test_env_sets_address_key_and_model_from_the_record(tmp_path, monkeypatch):
    record = own_record(tmp_path / ODD_HOME, monkeypatch, model="a model's name")
    text = configurations.of_record("env", record)
    assert record.api_key not in text
    assert variables(text) == [URL, record.api_key, "a model's name"]


def test_env_takes_the_key_of_a_server_that_was_shared(tmp_path, monkeypatch):
    record = own_record(tmp_path / "theirs", monkeypatch)
    folder = tmp_path / "class"
    folder.mkdir()
    records.path_of("one").rename(folder / "one.json")
    monkeypatch.setenv("WORKSHOP_SHARED", str(folder))
    own_record(tmp_path / "ours", monkeypatch, api_key="of-another-server")
    assert variables(configurations.of_record("env", record))[1] == record.api_key


def test_env_without_a_record_takes_the_key_from_the_environment():
    assert variables(text("env"), WORKSHOP_API_KEY="given") == [URL, "given", MODEL]


def test_access_says_address_model_and_the_command_that_prints_the_key(tmp_path, monkeypatch):
    record = own_record(tmp_path / ODD_HOME, monkeypatch)
    lines = configurations.access(record)
    assert lines[0].split() == ["address", URL] and lines[1].split() == ["model", MODEL]
    command = lines[2].removeprefix("key").strip()
    printed = subprocess.run(["sh", "-c", command], check=True, capture_output=True, text=True)
    assert printed.stdout.strip() == record.api_key
    assert record.api_key not in "\n".join(lines)


def test_access_without_the_records_file_names_the_variable(tmp_path, monkeypatch):
    record = own_record(tmp_path, monkeypatch)
    records.path_of("one").unlink()
    assert "WORKSHOP_API_KEY" in configurations.access(record)[2]


def test_llm_is_a_model_of_its_own_file():
    """Without a name of a key llm 0.32 sends none, whatever the environment says."""
    (model,) = yaml.safe_load(text("llm"))
    assert (model["model_id"], model["model_name"]) == ("my-server", "llama")
    assert model["api_base"] == URL and model["api_key_name"]


def test_aider_is_one_command_with_the_models_name_for_litellm():
    lines = [line for line in text("aider").splitlines() if not line.startswith("#")]
    arguments = shlex.split("\n".join(lines))
    assert f"OPENAI_API_BASE={URL}" in arguments
    assert arguments[arguments.index("--model") + 1] == "openai/llama"


def test_another_kind_is_refused_with_those_that_are_known():
    with pytest.raises(BadInput, match=r"'emacs' is no client.*opencode"):
        text("emacs")


def test_the_command_prints_it_without_the_key(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKSHOP_HOME", str(tmp_path))
    record = records.new(name="one", url=URL, model=MODEL, log="")
    record = replace(record, state="ready", pid=os.getpid(), where="given")
    records.write(record)
    done = CliRunner().invoke(command, ["one", "--client", "langchain"], catch_exceptions=False)
    assert done.exit_code == 0 and "ChatOpenAI" in done.stdout
    assert record.api_key not in done.output and "export WORKSHOP_API_KEY" in done.stderr

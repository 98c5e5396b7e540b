"""The templates of the manifests: Jinja's settings, and what the templates know beside a case."""

from pathlib import Path
from typing import Any

import jinja2
import yaml

from workshop.guard.auth import KEY_FILE_VARIABLE, METRICS_KEY_FILE_VARIABLE
from workshop.servers.hang import LONGEST_STEP_S
from workshop.servers.start_time import START_ALLOWANCE_S
from workshop.servers.weights import check

PORT = 8000
MODELS = "/models"
PROBE_EVERY_S = 10
# What vLLM's own --api-key guards in every release that a plan is for, and what is open to the outside.
GUARDED_BY_VLLM = "/v1"
WHOLE = ".workshop-whole"  # in the model's folder, once the download is complete
# The same weights again: the Hub's tool would download them, too.
LEFT_OUT = ("*.bin", *check.OTHER_FORMATS)
FOLDER = Path(__file__).parent / "templates"


def scalar(text: str) -> str:
    """Return a text as YAML writes it on one line, quoted where it must be."""
    return yaml.safe_dump(text, width=10_000).removesuffix("...\n").strip()


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # YAML; what a user may choose goes through `scalar`
    )
    environment.filters["scalar"] = scalar
    environment.globals.update(
        GUARDED_BY_VLLM=GUARDED_BY_VLLM,
        LEFT_OUT=LEFT_OUT,
        WHOLE=WHOLE,
        MODELS=MODELS,
        PORT=PORT,
        PROBE_EVERY_S=PROBE_EVERY_S,
        WORKS_S=round(LONGEST_STEP_S),
        START_ALLOWANCE_S=round(START_ALLOWANCE_S),
        KEY_FILE_VARIABLE=KEY_FILE_VARIABLE,
        METRICS_KEY_FILE_VARIABLE=METRICS_KEY_FILE_VARIABLE,
    )
    return environment


ENVIRONMENT = _environment()


def read_template(name: str) -> str:
    """Return the text of a template."""
    return (FOLDER / name).read_text(encoding="utf-8")


def make(template: str, **values: Any) -> str:
    """Return the YAML of templates/TEMPLATE.yaml.j2; values: what the template names."""
    return ENVIRONMENT.get_template(f"{template}.yaml.j2").render(**values)

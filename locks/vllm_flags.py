"""Record the flags of the installed vLLM, as its own parser takes them: `python -P locks/vllm_flags.py`.

It writes workshop/servers/flags/releases/VERSION.json: one line for each option, with its names, how many values it
takes, their type and choices, and the names of the fields of a JSON value. Run it after a new vLLM; with the Python of
another environment it records that one's.
"""

import dataclasses
import json
import types
import typing
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from workshop.files import replacement
from workshop.vllm_package import installed
from workshop.workarounds import cpu_package_name

FOLDER = Path(__file__).parents[1] / "workshop" / "servers" / "flags" / "releases"
# vLLM's functions that read a value, by what they read; a type that is not here takes any text
TYPES = {
    "int": "int",
    "float": "float",
    "loads": "json",
    "human_readable_int": "size",
    "human_readable_int_or_auto": "size or auto",
    "union_dict_and_str": "json or text",
    "parse_dataclass": "fields",
}
UNIONS = (typing.Union, types.UnionType)


def main() -> None:
    """Write the record of the installed release."""
    cpu_package_name.apply()
    from vllm.config import VllmConfig
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.entrypoints.openai.models.protocol import LoRAModulePath
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    # what the parser reads as free JSON, and the engine as one of its own configurations
    later = {name: field.annotation for name, field in VllmConfig.__pydantic_fields__.items()}
    options = [option(action, later) for action in parser._actions if action.option_strings]
    adapters = next(row for row in options if "--lora-modules" in row["names"])
    adapters |= {"type": "adapter", "fields": fields_of(LoRAModulePath)}
    lines = ",\n".join(json.dumps(row) for row in options)
    version = installed()[1].partition("+")[0]
    with replacement(FOLDER / f"{version}.json") as file:
        file.write(f"[\n{lines}\n]\n".encode())
    print(f"{len(options)} options of vLLM {version}")


def option(action, later: dict) -> dict:
    """Return the row of one option: only what differs from an option with one value of any text."""
    name, is_optional, classes = type_of(action.type)
    if action.dest in later and name == "json":
        classes = [later[action.dest]]
    row = {"names": action.option_strings, "nargs": action.nargs, "type": name}
    row["optional"] = is_optional
    if action.choices:
        row["choices"] = list(action.choices)
        if action.type and getattr(action.type, "__name__", "") == "<lambda>":
            row["type"] = "word"  # written with dashes or underscores, in any case
    for annotation in classes:
        row["fields"] = fields_of(annotation)
    return {
        key: value for key, value in row.items() if value not in (None, "") and value is not False
    }


def type_of(function) -> tuple[str, bool, list]:
    """Return (name in TYPES, whether "" and "None" are taken too, classes) of a function that reads a value."""
    closure = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    inner = next(filter(callable, closure), None)
    name = getattr(function, "__name__", "")
    if name == "_optional_type":
        return type_of(inner)[0], True, type_of(inner)[2]
    if name == "_parse_type":
        return type_of(inner)
    classes = (
        list(getattr(function, "__defaults__", None) or ()) if name == "parse_dataclass" else []
    )
    return TYPES.get(name, ""), False, classes


def fields_of(annotation) -> dict | None:
    """Return the fields of a configuration: the choices of one, the fields of one that is a configuration, or null.

    Returns: None if the annotation is no configuration, or one that changes what it is given before it reads it.
    """
    kinds = [annotation]
    if typing.get_origin(annotation) in UNIONS:
        kinds = list(typing.get_args(annotation))
    configuration = next(filter(dataclasses.is_dataclass, kinds), None)
    if configuration is None:
        return None
    names = [field.name for field in dataclasses.fields(configuration) if field.init]
    decorators = getattr(configuration, "__pydantic_decorators__", None)
    if decorators is None:
        return dict.fromkeys(names)
    takes_any = configuration.__pydantic_config__.get("extra") != "forbid"
    before = [validator.info.mode != "after" for validator in decorators.model_validators.values()]
    if takes_any or any(before):
        return None
    changed_before = set()
    for validator in decorators.field_validators.values():
        if validator.info.mode != "after":
            changed_before.update(validator.info.fields)
    fields = {}
    for name in filter(lambda name: takes(configuration, name), names):
        fields[name] = None
        field = configuration.__pydantic_fields__.get(name)
        if field and not changed_before & {name, "*"}:
            fields[name] = fields_of(field.annotation) or choices_of(field.annotation)
    return fields


def takes(configuration, name: str) -> bool:
    """Return True if a configuration may be given a field of this name. It is not made: another field is wrong."""
    try:
        TypeAdapter(configuration).validate_python({name: None, "no field of it": None})
    except ValidationError as error:
        problems = error.errors(include_input=False, include_context=False, include_url=False)
        unknown = [
            problem["loc"]
            for problem in problems
            if problem["type"] == "unexpected_keyword_argument"
        ]
        return (name,) not in unknown
    except Exception:  # of the field's own function that reads a value
        return True
    raise AssertionError(f"{configuration} takes any field")


def choices_of(annotation) -> list | None:
    """Return the values of an annotation that consists of literals; None for any other."""
    choices = []
    kinds = [annotation]
    if typing.get_origin(annotation) in UNIONS:
        kinds = list(typing.get_args(annotation))
    for kind in kinds:
        if kind is type(None):
            choices.append(None)
        elif typing.get_origin(kind) is typing.Literal:
            choices += typing.get_args(kind)
        else:
            return None
    return choices


if __name__ == "__main__":
    main()

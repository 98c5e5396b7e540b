"""What `kubectl kustomize FOLDER` prints, for the part of kustomize that kubernetes/ uses; anything else is an error.

Resources, components, JSON patches (RFC 6902) by kind, a namespace, and replacements of one field or of a part of
it. Where kubectl is at hand, tests compare the two.
"""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

KNOWN = {
    "apiVersion",
    "kind",
    "namespace",
    "resources",
    "components",
    "patches",
    "replacements",
}


def build(folder: Path) -> list[dict]:
    """Return the resources of a kustomization, in their order."""
    return _accumulate(folder.resolve(), [])


def _accumulate(folder: Path, resources: list[dict]) -> list[dict]:
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    unknown = set(kustomization) - KNOWN
    assert not unknown, f"{folder}: {unknown} is not implemented here"
    for name in kustomization.get("resources", []):
        path = folder / name
        resources += build(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
    for name in kustomization.get("components", []):
        resources = _accumulate((folder / name).resolve(), resources)
    for patch in kustomization.get("patches", []):
        _patch(resources, patch)
    for replacement in kustomization.get("replacements", []):
        _replace(resources, replacement)
    if "namespace" in kustomization:
        _put_into(kustomization["namespace"], resources)
    return resources


def _put_into(namespace: str, resources: list[dict]) -> None:
    """Give every resource its namespace; a Namespace gets the name itself."""
    for resource in resources:
        field = "name" if resource["kind"] == "Namespace" else "namespace"
        resource["metadata"][field] = namespace


def _patch(resources: list[dict], patch: dict) -> None:
    """Apply a patch to the resources of its kind, which is a regular expression."""
    steps = yaml.safe_load(patch["patch"])
    assert isinstance(steps, list), f"{steps} is not implemented here"
    for resource in resources:
        if re.fullmatch(patch["target"]["kind"], resource["kind"]):
            for step in steps:
                _step(resource, step)


def _step(resource: dict, step: dict) -> None:
    """Apply one operation of RFC 6902."""
    value = deepcopy(step.get("value"))
    holder, key = _find(resource, step["path"])
    if step["op"] == "remove":
        del holder[key]
    elif step["op"] == "replace":
        assert isinstance(holder, list) or key in holder, f"{step['path']} is not there"
        holder[key] = value
    else:
        assert step["op"] == "add", f"{step['op']} is not implemented here"
        if key == "-":
            holder.append(value)
        elif isinstance(holder, list):
            holder.insert(key, value)
        else:
            holder[key] = value


def _find(resource: dict, path: str) -> tuple[Any, Any]:
    """Return what holds the end of a JSON pointer, and its key there."""
    *parents, last = [
        part.replace("~1", "/").replace("~0", "~") for part in path.strip("/").split("/")
    ]
    holder: Any = resource
    for part in parents:
        holder = holder[_key(holder, part)]
    return holder, _key(holder, last)


def _key(holder: Any, part: str) -> Any:
    if isinstance(holder, list) and part != "-":
        return int(part)
    return part


def _replace(resources: list[dict], replacement: dict) -> None:
    source = replacement["source"]
    (value,) = (
        _get(resource, source["fieldPath"])
        for resource in resources
        if resource["kind"] == source["kind"]
    )
    for target in replacement["targets"]:
        options = target.get("options", {})
        for resource in (
            candidate for candidate in resources if candidate["kind"] == target["select"]["kind"]
        ):
            for path in target["fieldPaths"]:
                holder, key = _find(resource, _pointer(path))
                assert isinstance(holder, list) or key in holder, f"{path} is not there"
                if options:
                    parts = holder[key].split(options["delimiter"])
                    parts[options["index"]] = value
                    holder[key] = options["delimiter"].join(parts)
                else:
                    holder[key] = value


def _get(resource: dict, path: str) -> Any:
    holder, key = _find(resource, _pointer(path))
    return holder[key]


def _pointer(path: str) -> str:
    """Return a field path of kustomize as a JSON pointer: a.[b.c/d].e is a/b.c~1d/e."""
    parts = re.findall(r"\[([^\]]+)\]|([^.]+)", path)
    names = [bracketed or plain for bracketed, plain in parts]
    return "/".join(name.replace("/", "~1") for name in names)

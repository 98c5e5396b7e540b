"""What `kubectl kustomize FOLDER` prints, for the part of kustomize that kubernetes/ uses; anything else is an error.

Resources, components, JSON patches by kind that remove a field, and replacements of one field. Where kubectl is at
hand, a test compares the two.
"""

from __future__ import annotations

from pathlib import Path

import yaml

KNOWN = {"apiVersion", "kind", "resources", "components", "patches", "replacements"}


def build(folder: Path) -> list[dict]:
    """Return the resources of a kustomization, in their order."""
    return _accumulate(folder.resolve(), [])


def _accumulate(folder: Path, found: list[dict]) -> list[dict]:
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    unknown = set(kustomization) - KNOWN
    assert not unknown, f"{folder}: {unknown} is not implemented here"
    for name in kustomization.get("resources", []):
        path = folder / name
        found += build(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
    for name in kustomization.get("components", []):
        found = _accumulate((folder / name).resolve(), found)
    for patch in kustomization.get("patches", []):
        for resource in (each for each in found if each["kind"] == patch["target"]["kind"]):
            for step in yaml.safe_load(patch["patch"]):
                _remove(resource, step)
    for replacement in kustomization.get("replacements", []):
        _replace(found, replacement)
    return found


def _remove(resource: dict, step: dict) -> None:
    assert step["op"] == "remove"
    *parents, last = step["path"].strip("/").split("/")
    for key in parents:
        resource = resource[key]
    del resource[last]


def _replace(found: list[dict], replacement: dict) -> None:
    source = replacement["source"]
    (value,) = (_get(each, source["fieldPath"]) for each in found if each["kind"] == source["kind"])
    for target in replacement["targets"]:
        for resource in (each for each in found if each["kind"] == target["select"]["kind"]):
            for path in target["fieldPaths"]:
                *parents, last = path.split(".")
                _get(resource, ".".join(parents))[last] = value


def _get(resource: dict, path: str):
    for key in path.split("."):
        resource = resource[key]
    return resource

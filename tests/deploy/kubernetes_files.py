"""Reads deploy/kubernetes as Kubernetes does: what its containers run, and with which environment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
KUSTOMIZATION = "kustomization.yaml"
_REFERENCE = re.compile(r"\$\((\w+)\)")


def files() -> list[str]:
    return sorted(path.name for path in FOLDER.glob("*.yaml") if path.name != KUSTOMIZATION)


def manifests() -> list[dict[str, Any]]:
    """Returns all objects of all files."""
    return [found for name in files() for found in yaml.safe_load_all((FOLDER / name).read_text())]


def manifest(kind: str, name: str) -> dict[str, Any]:
    (found,) = [each for each in manifests() if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def pods() -> dict[str, dict[str, Any]]:
    """Returns the specifications of pods, by the name of what makes them."""
    return {maker["metadata"]["name"]: maker["spec"]["template"]["spec"] for maker in makers()}


def makers() -> list[dict[str, Any]]:
    """Returns what makes pods."""
    return [each for each in manifests() if "template" in each["spec"]]


def options_of(words: Sequence[str]) -> dict[str, str]:
    """Returns the options of a command such as `redis-server --name value ...`, by name."""
    _, *rest = words
    return {name.removeprefix("--"): value for name, value in zip(rest[::2], rest[1::2], strict=True)}


def containers() -> dict[str, dict[str, Any]]:
    return {container["name"]: container for pod in pods().values() for container in pod["containers"]}


def environment(container: Mapping[str, Any], secrets: Mapping[str, str], fields: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a container, with secrets by key and fields of the pod by path."""
    environ = {}
    for variable in container.get("env", ()):
        source = variable.get("valueFrom", {})
        if "secretKeyRef" in source:
            reference = source["secretKeyRef"]
            if reference["key"] in secrets or not reference.get("optional"):
                environ[variable["name"]] = secrets[reference["key"]]
        elif "fieldRef" in source:
            environ[variable["name"]] = fields[source["fieldRef"]["fieldPath"]]
        else:
            environ[variable["name"]] = variable["value"]
    return environ


def arguments(container: Mapping[str, Any], environ: Mapping[str, str]) -> list[str]:
    """Returns what a container runs, with `$(NAME)` filled in."""
    return [_REFERENCE.sub(lambda match: environ[match[1]], word) for word in container["args"]]


def engine_on_gpus() -> dict[str, Any]:
    """Returns the engines' StatefulSet with the patch of the component for GPUs."""
    component = yaml.safe_load((FOLDER / "gpu" / KUSTOMIZATION).read_text())
    engine = manifest("StatefulSet", "engine")
    (patch,) = component["patches"]
    assert (patch["target"]["kind"], patch["target"]["name"]) == ("StatefulSet", "engine")
    for step in yaml.safe_load(patch["patch"]):
        place, *names = [engine, *step["path"].strip("/").split("/")]
        for name in names[:-1]:
            place = place[int(name) if isinstance(place, list) else name]
        if names[-1] == "-":
            place.append(step["value"])
        else:
            assert step["op"] == "add" or names[-1] in place
            place[names[-1]] = step["value"]
    return engine

"""Accelerators of the v1alpha1 controller's configuration: what containers that ask for a device get with it.

For each resource a ``tensorflow`` container asks for, the configured host volumes are mounted and variables set.
Device plugins have made this obsolete; clusters that predate them still need it. Applying it twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError

from tf_dist.core.dialects.problems import described, dotted
from tf_dist.core.dialects.shape import TF_CONTAINER, Shape
from tf_dist.core.model import Document
from tf_dist.core.untyped import at, items, mapping
from tf_dist.errors import InvalidJob, Problem


class HostVolume(Shape):
    """A directory of the node, and where containers see it."""

    name: str
    host_path: str
    mount_path: str


class Variable(Shape):
    """A variable for the container."""

    name: str
    value: str


class Accelerator(Shape):
    """What goes with one resource."""

    volumes: list[HostVolume] = Field(default_factory=list)
    env_vars: list[Variable] = Field(default_factory=list)


def apply(document: Document, accelerators: Mapping[str, Any]) -> dict[str, Any]:
    """The v1alpha1 document with every template configured; InvalidJob says what is wrong with the configuration."""
    config = _read(accelerators)
    specs = [
        {**replicas, "template": _configured(replicas["template"], config)} if at(replicas, "template") else replicas
        for replicas in items(at(document, "spec", "replicaSpecs"))
    ]
    return {**document, "spec": {**document["spec"], "replicaSpecs": specs}}


def _read(accelerators: Mapping[str, Any]) -> dict[str, Accelerator]:
    try:
        return TypeAdapter(dict[str, Accelerator]).validate_python(dict(accelerators))
    except ValidationError as error:
        raise InvalidJob(
            Problem(dotted(("accelerators", *detail["loc"])), f"{detail['msg']}, not {described(detail['input'])}")
            for detail in error.errors(include_url=False)
        ) from None


def _configured(template: Mapping[str, Any], config: Mapping[str, Accelerator]) -> Document:
    spec = mapping(template.get("spec"))
    found: list[Accelerator] = []
    listed = []
    for container in items(spec.get("containers")):
        wanted = _wanted(container, config) if at(container, "name") == TF_CONTAINER else []
        found += wanted
        listed.append(_equipped(container, wanted) if wanted else container)
    if not found:
        return template
    volumes = [{"name": one.name, "hostPath": {"path": one.host_path}} for each in found for one in each.volumes]
    return {**template, "spec": {**spec, "containers": listed, "volumes": _added(spec.get("volumes"), volumes, "name")}}


def _wanted(container: Mapping[str, Any], config: Mapping[str, Accelerator]) -> list[Accelerator]:
    resources = container.get("resources")
    asked = {**mapping(at(resources, "limits")), **mapping(at(resources, "requests"))}
    return [config[name] for name in asked if name in config]


def _equipped(container: Mapping[str, Any], wanted: list[Accelerator]) -> dict[str, Any]:
    mounts = [{"name": one.name, "mountPath": one.mount_path} for each in wanted for one in each.volumes]
    variables = [{"name": one.name, "value": one.value} for each in wanted for one in each.env_vars]
    return {
        **container,
        "volumeMounts": _added(container.get("volumeMounts"), mounts, "mountPath"),
        "env": _added(container.get("env"), variables, "name"),
    }


def _added(present: object, new: list[dict[str, Any]], key: str) -> list[Any]:
    """A list with what it lacks; an entry of the user's own with the same key stays as it is."""
    result = list(items(present))
    for entry in new:
        if all(at(one, key) != entry[key] for one in result):
            result.append(entry)
    return result

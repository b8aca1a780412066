"""Accelerators in the configuration of a TFJob v1alpha1 controller: what containers that ask for a device get with it.

Device plugins have made this obsolete; clusters and drivers that predate them still need it. The configuration is the
file of the original's ``--controller-config-file``; its ``ConfigureAcceleratorsForTFJobSpec`` says who gets what.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tf_dist.core.dialects.common_schema import TF_CONTAINER
from tf_dist.core.dialects.field_errors import FieldErrors, list_at, mapping_at, text_at
from tf_dist.core.model.fieldpath import FieldPath, list_items, mapping, suggestion, value_at
from tf_dist.core.model.job import Dialect, Document, Job, ReplicaSpec


@dataclass(frozen=True, slots=True)
class Accelerator:
    """What goes with one resource, in Kubernetes' form: volumes of the pod, mounts and variables of the container."""

    volumes: tuple[Document, ...] = ()
    mounts: tuple[Document, ...] = ()
    variables: tuple[Document, ...] = ()


Accelerators = Mapping[str, Accelerator]
"""Accelerators by the resource that a container asks for."""

# The original's charts write the last two as well; no job depends on them any more.
_FILE_KEYS: Final = ("accelerators", "grpcServerFilePath", "tfImage")


def parse_controller_config(document: object) -> Accelerators:
    """The accelerators of a configuration file; InvalidJob holds everything that is wrong with it.

    Keys may have any capitals, as for the original. Unknown ones are errors: what they were to bring would be missing
    in pods, much later. Values of the wrong type are errors of the original, too.
    """
    out = FieldErrors()
    listed = _fields(document, _FILE_KEYS, (), out).get("accelerators")
    found: Accelerators = {}
    if listed is not None:
        entries = mapping_at(listed, ("accelerators",), out) or {}
        found = {str(name): _accelerator(entry, ("accelerators", str(name)), out) for name, entry in entries.items()}
    out.raise_errors()
    return found


def _fields(value: object, known: Collection[str], loc: FieldPath, out: FieldErrors) -> dict[str, Any]:
    """The keys of a mapping as they are documented; none if it is no mapping."""
    fields: dict[str, Any] = {}
    for key, content in (mapping_at(value, loc, out) or {}).items():
        name = next((one for one in known if one.lower() == str(key).lower()), None)
        if name is None:
            out.unknown_key((*loc, str(key)), suggestion(str(key), known))
        else:
            fields[name] = content
    return fields


def _accelerator(value: object, loc: FieldPath, out: FieldErrors) -> Accelerator:
    fields = {} if value is None else _fields(value, ("volumes", "envVars"), loc, out)
    volumes = list(_entries(fields, "volumes", ("name", "hostPath", "mountPath"), loc, out))
    variables = list(_entries(fields, "envVars", ("name", "value"), loc, out))
    return Accelerator(
        tuple({"name": one["name"], "hostPath": {"path": one["hostPath"]}} for one in volumes),
        tuple({"name": one["name"], "mountPath": one["mountPath"]} for one in volumes),
        tuple(variables),
    )


def _entries(
    fields: Mapping[str, Any], key: str, known: Collection[str], loc: FieldPath, out: FieldErrors
) -> Iterator[dict[str, str]]:
    """The entries of a list, each with a text for every key; a variable may be empty."""
    for index, item in enumerate(list_at(fields, key, loc, out)):
        place = (*loc, key, index)
        entry = _fields(item, known, place, out)
        texts = {one: text_at(entry, one, place, out, required=one != "value") for one in known}
        yield {one: text or "" for one, text in texts.items()}


def with_accelerators(job: Job, accelerators: Accelerators) -> Job:
    """A TFJob v1alpha1 with what its containers ``tensorflow`` need for the resources they ask for; others as they are.

    What the user has under the same name or path stays as it is. (The original adds a second one, which the API server
    refuses.)
    """
    if not accelerators or job.dialect is not Dialect.TFJOB_V1ALPHA1:
        return job
    return replace(job, replica_specs=tuple(_equipped(spec, accelerators) for spec in job.replica_specs))


def _equipped(spec: ReplicaSpec, accelerators: Accelerators) -> ReplicaSpec:
    body = spec.pod_spec
    containers = list_items(body.get("containers"))
    at = next((at for at, one in enumerate(containers) if value_at(one, "name") == TF_CONTAINER), None)
    wanted = [] if at is None else _wanted(containers[at], accelerators)
    if at is None or not wanted:
        return spec
    container = {
        **containers[at],
        **_added(containers[at], "volumeMounts", "mountPath", [entry for one in wanted for entry in one.mounts]),
        **_added(containers[at], "env", "name", [entry for one in wanted for entry in one.variables]),
    }
    volumes = _added(body, "volumes", "name", [entry for one in wanted for entry in one.volumes])
    changed = {**body, "containers": [*containers[:at], container, *containers[at + 1 :]], **volumes}
    return replace(spec, template={**spec.template, "spec": changed})


def _wanted(container: Mapping[str, Any], accelerators: Accelerators) -> list[Accelerator]:
    """Those of the resources in limits and requests, each once."""
    limits = mapping(value_at(container, "resources", "limits"))
    requests = mapping(value_at(container, "resources", "requests"))
    return [accelerators[name] for name in dict.fromkeys((*limits, *requests)) if name in accelerators]


def _added(to: Mapping[str, Any], key: str, identity: str, new: list[Document]) -> dict[str, list[Any]]:
    """The list under ``key`` with what it lacks; nothing where it lacks nothing."""
    there = list_items(to.get(key))
    lacking: dict[str, Document] = {}
    for entry in new:
        lacking.setdefault(entry[identity], entry)
    for entry in there:
        lacking.pop(value_at(entry, identity), None)
    return {key: [*there, *lacking.values()]} if lacking else {}

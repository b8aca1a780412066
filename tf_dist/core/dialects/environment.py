"""Checks of environment variables and arguments: what Linux cannot pass to a program, and undefined references.

Linux cannot start a program with a variable of more than 131,071 bytes ("argument list too long"), so every container
of such a job would fail. The lengths are computed without building the values, because stored jobs are checked in every
pass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from tf_dist.core.dialects.common_schema import LAYOUTS
from tf_dist.core.dialects.field_errors import FieldErrors
from tf_dist.core.model import names
from tf_dist.core.model.fieldpath import FieldPath, list_items, suggestion, text, value_at
from tf_dist.core.model.job import MAX_REPLICAS, Dialect, Job, ReplicaId, ReplicaSpec, Role, TFConfigStyle

MAX_VARIABLE: Final = 131_071
"""The maximum number of bytes of ``NAME=value``, without the NUL that the kernel counts (``MAX_ARG_STRLEN``)."""

_MAX_ADDRESS: Final = 300
"""The maximum number of bytes of an address in any variable: a DNS name of 253 characters, a port, quotes and an index.
"""


def check_environment(job: Job, out: FieldErrors) -> None:
    """Errors for variables that are too long for Linux; warnings for variables that get too long when the job grows."""
    if sum(spec.most for spec in job.replica_specs) * _MAX_ADDRESS < MAX_VARIABLE:
        return
    hint = "run fewer replicas, or shorten the names of the job and its namespace"
    leads = any(spec.role.leads for spec in job.replica_specs)
    if job.dialect is Dialect.TFJOB_V1 and job.tf_config is not TFConfigStyle.SPARSE and not leads:
        hint += "; enableDynamicWorker: true names no other workers"
    place = LAYOUTS[job.dialect].replicas
    for variable, length in _lengths(job):
        if length > MAX_VARIABLE:
            message = f"{variable} would have {length} bytes with the addresses of all replicas"
            out.error(place, f"{message}; Linux allows {MAX_VARIABLE}, so no container starts", hint)
    grown = tuple(replace(spec, replicas=spec.most) for spec in job.replica_specs)
    if not out.advice or out.errors or grown == job.replica_specs:
        return
    for variable, length in _lengths(replace(job, replica_specs=grown)):
        if length > MAX_VARIABLE:
            message = f"{variable} has {length} bytes when the job has grown to all the workers that it may have"
            out.warn(place, f"{message}; Linux allows {MAX_VARIABLE}, so no container starts then", hint)


def _lengths(job: Job) -> Iterator[tuple[str, int]]:
    """The variables that name every replica, each with its maximum number of bytes over all containers."""
    if job.tf_config is not TFConfigStyle.NONE:
        sparse = job.tf_config is TFConfigStyle.SPARSE
        seeing = [spec for spec in job.replica_specs if (spec.role.leads if sparse else spec.role is Role.EVALUATOR)]
        values = (_BY_STYLE[job.tf_config](job, viewer) for viewer in seeing or list(job.replica_specs))
        yield "TF_CONFIG", len("TF_CONFIG=") + max(values, default=0)
    if job.plugins.svc and job.plugins.hosts_env:
        for spec in job.replica_specs:
            name = f"{names.hosts_prefix(spec.name)}_HOSTS"
            yield name, len(name) + _hosts(job, spec) + spec.replicas


def check_words(container: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    """Errors for words and values with a NUL, which an API server accepts. Linux cannot pass them to a program."""
    for place, written, _ in _words(container):
        if "\0" in text(written):
            out.error((*loc, *place), "contains a NUL character, so no container starts", "remove it")


def _words(container: Mapping[str, Any]) -> Iterator[tuple[FieldPath, object, str]]:
    """The values of ``env``, each with its name, and the words of the command."""
    for index, entry in enumerate(list_items(container.get("env"))):
        yield ("env", index, "value"), value_at(entry, "value"), text(value_at(entry, "name"))
    for field in ("command", "args"):
        for index, word in enumerate(list_items(container.get(field))):
            yield (field, index), word, ""


# ``$$`` is an escaped dollar sign. A shell runs ``$(date)`` as a program, so names in lower case are ignored.
_REFERENCE: Final = re.compile(r"\$\$|\$\(([A-Z_][A-Z0-9_]*)\)")
# Variables that Kubernetes sets for Services, and variables of the steps of workflows.
_SET_BY_OTHERS: Final = re.compile(r"\w+_SERVICE_(?:HOST|PORT(?:_\w+)?)|\w+_PORT(?:_\w+)?|TF_DIST_\w+")
# A hint compares a name with the known names, and a document can contain tens of thousands of references.
_MOST_WARNINGS: Final = 10
_MOST_COMPARED: Final = 100


def advise_references(job: Job, container: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    """Warn about references ``$(NAME)`` to variables that ``env`` does not define: Kubernetes does not replace them.

    Neither does Kubernetes replace references to variables of the image, or in ``env`` to later entries.
    """
    if container.get("envFrom"):
        return  # the keys of ConfigMaps and Secrets are unknown here
    known = {"", "TF_CONFIG"}  # "": an escaped dollar sign
    if job.dialect is Dialect.VOLCANO:  # other checks report missing plugins
        known |= {"VK_TASK_INDEX", "VC_TASK_INDEX"}
        known |= {f"{names.hosts_prefix(spec.name)}_{part}" for spec in job.replica_specs for part in ("HOSTS", "NUM")}
    count = 0
    for place, written, defined in _words(container):
        for name in dict.fromkeys(_REFERENCE.findall(text(written))):
            if name in known or _SET_BY_OTHERS.fullmatch(name):
                continue
            where = " before this entry" if place[0] == "env" else ""
            way = f"add it to env, or use a shell: only a shell replaces variables of the image (${name})"
            hint = suggestion(name, sorted(known - {""})[:_MOST_COMPARED], way)
            out.warn((*loc, *place), f"$({name}) is not replaced: env has no variable {name}{where}", hint)
            count += 1
            if count == _MOST_WARNINGS:
                return
        known.add(defined)


def _dense(job: Job, viewer: ReplicaSpec) -> int:
    kept = {**_task(viewer, viewer.type), "environment": "cloud"}
    return _frame(kept, [spec.type for spec in job.replica_specs]) + sum(_list(job, spec) for spec in job.replica_specs)


def _volcano(job: Job, viewer: ReplicaSpec) -> int:
    roles = {spec.role: spec for spec in job.replica_specs if spec.role is not Role.OTHER and spec.replicas}
    kept = _task(viewer, viewer.role.value or viewer.name)
    return _frame(kept, [role.value for role in roles]) + sum(_list(job, spec) for spec in roles.values())


def _sparse(job: Job, viewer: ReplicaSpec) -> int:
    named = [spec for spec in job.replica_specs if spec.role.leads or spec.role is Role.PS]
    types = {"worker", "ps", *(spec.type for spec in named)}
    length = _frame(_task(viewer, viewer.type), list(types)) + sum(_list(job, spec) for spec in named)
    for spec in job.replica_specs:
        if spec.role is Role.WORKER and viewer.role.leads:
            length += _list(job, spec) + _total(spec, str) + 3 * spec.replicas  # with the index as key: "12":"host"
        elif spec is viewer and spec.role is Role.WORKER:
            length += len(f'"{spec.replicas - 1}":"{names.endpoint(job, spec, spec.replicas - 1)}"')
    return length


_BY_STYLE: Final[dict[TFConfigStyle, Callable[[Job, ReplicaSpec], int]]] = {
    TFConfigStyle.V1ALPHA1: _dense,
    TFConfigStyle.V1: _dense,
    TFConfigStyle.SPARSE: _sparse,
    TFConfigStyle.VOLCANO: _volcano,
}


def _task(viewer: ReplicaSpec, type_: str) -> dict[str, Any]:
    return {"task": {"type": type_, "index": max(0, viewer.replicas - 1)}}


def _frame(kept: dict[str, Any], types: list[str]) -> int:
    """The length of a TF_CONFIG without addresses."""
    return len(json.dumps({"cluster": {type_: [] for type_ in types}, **kept}, separators=(",", ":")))


def _list(job: Job, spec: ReplicaSpec) -> int:
    """The length of a spec's addresses with their quotes and the commas between them."""
    return _total(spec, lambda index: names.endpoint(job, spec, index)) + max(0, 3 * spec.replicas - 1)


def _hosts(job: Job, spec: ReplicaSpec) -> int:
    return _total(spec, lambda index: ".".join(names.pod_host(job, ReplicaId(spec.type, index))))


def _total(spec: ReplicaSpec, text: Callable[[int], str]) -> int:
    """The length of ``text`` over all replicas of a spec. The texts differ only in the digits of the index."""
    first, longer = len(text(0)), len(text(10)) - len(text(0))
    more_digits = sum(max(0, spec.replicas - bound) for bound in (10, 100, 1_000, 10_000, MAX_REPLICAS))
    return spec.replicas * first + longer * more_digits

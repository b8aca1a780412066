"""What every gang scheduler is told about a gang: its name, how many pods it needs at least, and what they request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

from tf_dist.core import names, render
from tf_dist.core.actions import Update
from tf_dist.core.gang.demand import added, requests
from tf_dist.core.model import Document, Job
from tf_dist.core.quantity import format_quantity
from tf_dist.core.schedulers.model import Body
from tf_dist.core.schedulers.served import Api, Served
from tf_dist.core.situation import Situation
from tf_dist.core.sizes import bounds
from tf_dist.core.untyped import mapping, mappings

# The name of a gang is the value of a label, too: 63 characters, of which the hash takes six.
_LONGEST: Final = 57


def object_name(job: Job, *run: object) -> str:
    """The name of a gang's object: the job's, and a mark that no other job of that name ever has.

    ``run``: what tells one run of the job from another, where each has an object of its own.
    """
    return f"{job.key.name[:_LONGEST].rstrip('-.')}-{names.short_hash(job.uid, *run)}"


def body(
    job: Job, served: Served, api: Api, name: str, spec: Body, annotations: Mapping[str, str] | None = None
) -> Body:
    """An object of the job, in the version that is served, to be deleted with it."""
    metadata: Body = {
        "name": name,
        "namespace": job.key.namespace,
        "labels": names.job_labels(job),
        "ownerReferences": [render.owner_reference(job)],
    }
    if annotations:
        metadata["annotations"] = dict(annotations)
    version = served.versions[api.key]
    return {"apiVersion": f"{api.group}/{version}", "kind": api.kind, "metadata": metadata, "spec": spec}


def found(s: Situation, api: Api, name: str) -> Document | None:
    """An object of the job, unless it is on its way out."""
    there = s.observed.objects.get((api.key, name))
    return there if there is not None and "deletionTimestamp" not in there["metadata"] else None


def brought_up(api: Api, there: Document, wanted: Body) -> Iterator[Update]:
    """The change of an object whose spec does not say what it should; what others have added to it is left alone."""
    spec = mapping(there.get("spec"))
    changed = {key: value for key, value in wanted["spec"].items() if not _says(spec.get(key), value)}
    if changed:
        yield Update(api.key, there["metadata"]["name"], {"spec": changed})


def _says(there: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping) and isinstance(there, Mapping):
        return all(_says(there.get(key), value) for key, value in wanted.items())
    return bool(there == wanted)


def least(job: Job) -> dict[str, int]:
    """How many pods of each type the gang cannot do without at its start.

    Tasks that wait for others (Volcano's ``dependsOn``) come later: a gang that waited for their pods, too, would wait
    for ever.
    """
    limits = bounds(job)
    return {spec.type: limits[spec.type][0] for spec in job.replica_specs if spec.depends is None}


def min_member(job: Job) -> int:
    """How many pods have to be placed at once; at least one, which is the smallest gang there is."""
    return max(1, sum(least(job).values()))


def min_resources(job: Job) -> dict[str, str]:
    """What these pods request together, as quantities."""
    needed = least(job)
    asked = {spec.type: requests(spec.template.get("spec") or {}) for spec in job.replica_specs if spec.type in needed}
    total = added({r: value * needed[type_] for r, value in one.items()} for type_, one in asked.items())
    return {r: format_quantity(value) for r, value in sorted(total.items()) if r != "pods" and value > Decimal(0)}


def priority_class(job: Job) -> str:
    """The class that the job names, or else the first of its pod templates that names one; "" for none."""
    templates = (spec.template.get("spec") or {} for spec in job.replica_specs)
    named = (body.get("priorityClassName") for body in templates)
    return job.scheduling.priority_class or next((str(name) for name in named if name), "")


def condition(there: Document, type_: str) -> Mapping[str, Any]:
    """The condition of that type; an empty one if the object has none."""
    listed = mappings(mapping(there.get("status")).get("conditions"))
    return next((one for one in listed if one.get("type") == type_), {})


def holds(there: Document, type_: str) -> bool:
    """Whether the condition of that type is true."""
    return condition(there, type_).get("status") == "True"

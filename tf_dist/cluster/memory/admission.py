"""What happens to an object between a request and the store: stamps, defaults, rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tf_dist.cluster.api import Object
from tf_dist.cluster.memory import names
from tf_dist.cluster.memory.context import Context, Validator, refuse, subject
from tf_dist.cluster.memory.kinds import COMPLETIONS, RULES, default_labels
from tf_dist.cluster.memory.objects import copy_json
from tf_dist.cluster.memory.resources import Kind
from tf_dist.cluster.refusals import BadRequest, Invalid
from tf_dist.errors import InvalidJob, Problem

# What a client may not set: these come from the server, or from the object as it was.
_STAMPS = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds")


def own_body(kind: Kind, api_version: str, body: Any) -> Object:
    """A private copy of a request's body, of the right type; BadRequest."""
    try:
        obj = copy_json(body)
    except (TypeError, RecursionError) as error:
        raise BadRequest(f"the body is not a JSON object: {error}") from error
    if not isinstance(obj, dict) or not isinstance(obj.setdefault("metadata", {}), dict):
        raise BadRequest("the body must be an object with an object as its metadata")
    for field, wanted in (("apiVersion", api_version), ("kind", kind.resource.kind)):
        if obj.setdefault(field, wanted) != wanted:
            raise BadRequest(f"the {field} in the data ({obj[field]}) does not match the expected {field} ({wanted})")
    for field in ("spec", "status", "data"):
        if obj.get(field) is not None and not isinstance(obj[field], dict):
            raise BadRequest(f"{kind.resource.kind} {field} must be an object, not {type(obj[field]).__name__}")
    return obj


def admit_new(context: Context, kind: Kind, obj: Object) -> Object:
    """A created object with its stamps and defaults; Invalid, Forbidden."""
    metadata = obj["metadata"]
    for field in (*_STAMPS, "resourceVersion", "selfLink", "managedFields"):
        metadata.pop(field, None)
    metadata["uid"] = context.uids()
    metadata["creationTimestamp"] = context.now()
    default_labels(kind, metadata)
    if kind.generation:
        metadata["generation"] = 1
    if kind.status and kind.key != "nodes":
        obj.pop("status", None)
    obj = _ruled(context, kind, obj)
    if complete := COMPLETIONS.get(kind.key):
        complete(context, obj)
    return obj


def admit_update(context: Context, kind: Kind, old: Object, new: Object, subresource: str) -> Object:
    """The object that an update leaves: the other half and the stamps stay as they were; Invalid."""
    metadata = old["metadata"] if subresource else _kept_metadata(old, new)
    if subresource:
        return {**old, subresource: new.get(subresource) or {}}
    default_labels(kind, metadata)
    new = {**new, "metadata": metadata}
    if kind.status:
        new.pop("status", None)
        if "status" in old:
            new["status"] = old["status"]
    if _payload(new) == _payload(old):
        refuse(kind, new, _metadata_problems(kind, new, old))
        return new
    new = _ruled(context, kind, copy_json(new), old)
    if kind.generation and _payload(new) != _payload(old):
        new["metadata"]["generation"] = metadata.get("generation", 1) + 1
    return new


def _kept_metadata(old: Object, new: Object) -> Object:
    before = old["metadata"]
    metadata = {key: value for key, value in new["metadata"].items() if key not in _STAMPS}
    metadata |= {key: before[key] for key in ("name", "namespace", *_STAMPS) if key in before}
    metadata.pop("managedFields", None)
    return {**metadata, "resourceVersion": before["resourceVersion"]}


def _payload(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key not in ("metadata", "status", "apiVersion")}


def _ruled(context: Context, kind: Kind, obj: Object, old: Object | None = None) -> Object:
    """Defaults, then rules, then the validator that the cluster was given for this kind."""
    refuse(kind, obj, _metadata_problems(kind, obj, old))
    rules = RULES.get(kind.key)
    if rules:
        rules(kind, obj, old)
    validator = context.validators.get((kind.resource.group, kind.resource.kind))
    return _validated(kind, obj, validator) if validator else obj


def _validated(kind: Kind, obj: Object, validator: Validator) -> Object:
    metadata = obj["metadata"]
    try:
        checked = copy_json(validator(obj))
    except InvalidJob as error:
        raise Invalid(subject(kind, obj), error.problems) from error
    # The validator may default anything but the identity.
    return {**checked, "metadata": {**(checked.get("metadata") or {}), **metadata}}


def _metadata_problems(kind: Kind, obj: Object, old: Object | None) -> Iterator[Problem]:
    metadata = obj["metadata"]
    if problem := names.name_problem(kind.names, metadata.get("name", ""), "metadata.name"):
        yield problem
    for field in ("labels", "annotations"):
        if not isinstance(metadata.get(field) or {}, Mapping):
            yield Problem(f"metadata.{field}", "Invalid value: must be an object")
    yield from names.label_problems(metadata.get("labels"))
    yield from names.annotation_problems(metadata.get("annotations"))
    yield from _owner_problems(metadata.get("ownerReferences") or [])
    yield from _finalizer_problems(metadata, old)


def _owner_problems(owners: Any) -> Iterator[Problem]:
    if not isinstance(owners, list) or not all(isinstance(owner, Mapping) for owner in owners):
        yield Problem("metadata.ownerReferences", "Invalid value: must be a list of objects")
        return
    for at, owner in enumerate(owners):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not isinstance(owner.get(field), str) or not owner[field]:
                yield Problem(f"metadata.ownerReferences[{at}].{field}", "Invalid value: must not be empty")
    if sum(owner.get("controller") is True for owner in owners) > 1:
        yield Problem("metadata.ownerReferences", "Invalid value: only one reference can have controller set to true")


def _finalizer_problems(metadata: Object, old: Object | None) -> Iterator[Problem]:
    finalizers = metadata.get("finalizers") or []
    if not isinstance(finalizers, list) or not all(isinstance(item, str) and item for item in finalizers):
        yield Problem("metadata.finalizers", "Invalid value: must be a list of names")
        return
    before = (old or {}).get("metadata", {})
    if before.get("deletionTimestamp") and set(finalizers) - set(before.get("finalizers") or ()):
        yield Problem("metadata.finalizers", "Forbidden: no new finalizers can be added if the object is being deleted")

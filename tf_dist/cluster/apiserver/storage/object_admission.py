"""Admission of objects on create and update: metadata, defaults and rules of each kind, webhooks, ResourceQuota.

Rules change the object in place (it is a private copy) and raise Invalid; completions add what only new objects get.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from tf_dist.cluster.api import LIMIT_RANGES, PRIORITY_CLASSES, Object, has_ended
from tf_dist.cluster.api_errors import AdmissionDenied, BadRequest, Invalid
from tf_dist.cluster.apiserver.storage import object_validation
from tf_dist.cluster.apiserver.storage.api_resources import Kind, ResourceRegistry, kind_from_crd
from tf_dist.cluster.apiserver.storage.store import Clock, Key, Store, deep_copy_json
from tf_dist.core.api.fieldpath import format_field_path
from tf_dist.core.api.timestamps import format_time
from tf_dist.core.gang.resources.admission_config import container_defaults
from tf_dist.core.gang.resources.pod_requests import with_container_defaults
from tf_dist.core.gang.resources.resource_quota import pod_quota_usage, read_resource_quota
from tf_dist.core.gang.types import GangQuotaUsage, PodQuotaUsage, ResourceQuota
from tf_dist.core.openapi.kubernetes_types import NOT_THERE, UNKNOWN, TypeMistake, type_mistakes, type_of_kind
from tf_dist.errors import Forbidden, InvalidJob, Problem

Validator = Callable[[Object, Object | None], Object]
"""Given what is to be stored, and what was (None: nothing); returns it with defaults, or raises InvalidJob."""


@dataclass(frozen=True, slots=True)
class ServerContext:
    """The store, the kinds, and the sources of time, uids and random numbers.

    ``any_priority_class``: a pod may name a PriorityClass that is not there, and has priority 0.
    """

    store: Store
    registry: ResourceRegistry
    clock: Clock
    uids: Callable[[], str]
    dice: random.Random
    validators: Mapping[tuple[str, str], Validator]
    any_priority_class: bool = False

    def now(self) -> str:
        """The time as objects carry it."""
        return format_time(self.clock())


def raise_if_invalid(kind: Kind, obj: Object, problems: Iterator[Problem]) -> None:
    """Raise Invalid if there is any problem."""
    found = tuple(problems)
    if found:
        raise Invalid(error_subject(kind, obj), found)


def error_subject(kind: Kind, obj: Object) -> str:
    """``Pod "x"``: what an Invalid is about."""
    return f'{kind.shown} "{obj["metadata"].get("name", "")}"'


_CLASSES = f"{PRIORITY_CLASSES.plural}.{PRIORITY_CLASSES.group}"
_SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def set_default_labels(kind: Kind, metadata: Object) -> None:
    """The label that every namespace has, though a client writes another."""
    labels = metadata.get("labels") or {}
    if kind.key == "namespaces" and isinstance(labels, dict) and metadata.get("name"):
        metadata["labels"] = {**labels, "kubernetes.io/metadata.name": metadata["name"]}


def _pod_rules(kind: Kind, pod: Object, old: Object | None) -> None:
    if not pod.get("spec"):
        raise Invalid(error_subject(kind, pod), [Problem("spec.containers", "Required value")])
    object_validation.set_pod_defaults(pod)
    if old is None or pod["spec"] != old["spec"]:
        raise_if_invalid(kind, pod, object_validation.pod_spec_problems(pod))
    if old:
        raise_if_invalid(kind, pod, object_validation.pod_update_problems(old, pod))


def _service_rules(kind: Kind, service: Object, old: Object | None) -> None:
    spec = service.setdefault("spec", {})
    raise_if_invalid(kind, service, _service_problems(spec))
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port["port"])
    if old and old["spec"].get("clusterIP"):
        spec.setdefault("clusterIP", old["spec"]["clusterIP"])


def _service_problems(spec: Object) -> Iterator[Problem]:
    ports = spec.get("ports") or []
    if not ports and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
        yield Problem("spec.ports", "Required value")
    for at, port in enumerate(ports):
        if not 0 < port.get("port", 0) < 65536:
            yield Problem(f"spec.ports[{at}].port", "Invalid value: must be between 1 and 65535, inclusive")
        if len(ports) > 1 and not port.get("name"):
            yield Problem(f"spec.ports[{at}].name", "Required value")


def _secret_rules(kind: Kind, secret: Object, old: Object | None) -> None:
    secret.setdefault("type", "Opaque")
    if plain := secret.pop("stringData", None):
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in plain.items()}
        secret["data"] = {**(secret.get("data") or {}), **encoded}


def _crd_rules(kind: Kind, crd: Object, old: Object | None) -> None:
    try:
        custom = kind_from_crd(crd["spec"])
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        problem = Problem("spec", f"Required value: group, names.kind, names.plural and a served version ({error})")
        raise Invalid(error_subject(kind, crd), [problem]) from error
    if crd["metadata"]["name"] != custom.key:
        problem = Problem("metadata.name", 'Invalid value: must be spec.names.plural+"."+spec.group')
        raise Invalid(error_subject(kind, crd), [problem])


KIND_RULES: Mapping[str, Callable[[Kind, Object, Object | None], None]] = {
    "pods": _pod_rules,
    "services": _service_rules,
    "secrets": _secret_rules,
    "customresourcedefinitions.apiextensions.k8s.io": _crd_rules,
}


# What only new objects get.


def _new_pod(context: ServerContext, pod: Object) -> None:
    spec, namespace = pod["spec"], pod["metadata"].get("namespace", "")
    if limits := container_defaults(context.store.by_age(LIMIT_RANGES.plural, namespace).values()).get(namespace):
        spec.update(deep_copy_json(with_container_defaults(spec, limits)))
    if not spec.get("priorityClassName") and (default := _default_class(context)):
        spec["priorityClassName"] = default
    if name := spec.get("priorityClassName"):
        spec["priority"] = _priority(context, name)
    spec.setdefault("priority", 0)
    pod["status"] = object_validation.initial_pod_status(pod)


def _default_class(context: ServerContext) -> str:
    """The class of pods that name none: of several such the lowest."""
    classes = context.store.by_age(_CLASSES, "").items()
    defaults = [(one.get("value") or 0, name) for name, one in classes if one.get("globalDefault")]
    return min(defaults)[1] if defaults else ""


def _priority(context: ServerContext, name: str) -> int:
    if name in _SYSTEM_PRIORITIES:
        return _SYSTEM_PRIORITIES[name]
    found = context.store.get(Key(_CLASSES, "", name))
    if found is None and context.any_priority_class:
        return 0
    if found is None:
        raise AdmissionDenied(f"no PriorityClass with name {name} was found")
    return int(found.get("value") or 0)


def _new_service(context: ServerContext, service: Object) -> None:
    spec = service["spec"]
    if spec["type"] != "ExternalName" and not spec.get("clusterIP"):
        # Nothing routes to it; it only has to be one address per service, as clients expect.
        high, low = divmod(context.store.version % 64_000, 250)
        spec["clusterIP"] = f"10.96.{high}.{low + 2}"
    if spec.get("clusterIP"):
        spec["clusterIPs"] = [spec["clusterIP"]]
    service["status"] = {"loadBalancer": {}}


def _new_namespace(context: ServerContext, namespace: Object) -> None:
    namespace.setdefault("spec", {})["finalizers"] = ["kubernetes"]
    namespace["status"] = {"phase": "Active"}


def _new_claim(context: ServerContext, claim: Object) -> None:
    claim["status"] = {"phase": "Pending"}


def _new_crd(context: ServerContext, crd: Object) -> None:
    names_ = {"listKind": f"{crd['spec']['names']['kind']}List", **crd["spec"]["names"]}
    at = crd["metadata"]["creationTimestamp"]
    crd["status"] = {
        "acceptedNames": names_,
        "storedVersions": [version["name"] for version in crd["spec"]["versions"] if version.get("storage")],
        "conditions": [
            {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "lastTransitionTime": at},
            {"type": "Established", "status": "True", "reason": "InitialNamesAccepted", "lastTransitionTime": at},
        ],
    }


CREATE_DEFAULTS: Mapping[str, Callable[[ServerContext, Object], None]] = {
    "pods": _new_pod,
    "services": _new_service,
    "namespaces": _new_namespace,
    "persistentvolumeclaims": _new_claim,
    "customresourcedefinitions.apiextensions.k8s.io": _new_crd,
}


QUOTAS_KEY: Final = "resourcequotas"
_COUNTED: Final = ("pods", "services")
_SERVICE: Final = (("count/services", Decimal(1)), ("services", Decimal(1)))


def check_quota(context: ServerContext, kind: Kind, obj: Object) -> None:
    """Forbidden if a new object would go beyond a quota of its namespace."""
    namespace = obj["metadata"].get("namespace", "")
    if kind.key not in _COUNTED or not context.store.by_age(QUOTAS_KEY, namespace):
        return
    for stored in context.store.by_age(QUOTAS_KEY, namespace).values():
        quota = _enforced(stored)
        need, used = _need(quota, kind.key, obj), _used(context, namespace, quota)
        over = sorted(name for name, value in need.items() if used.get(name, Decimal(0)) + value > quota.hard[name])
        if over:
            said = (("requested", need), ("used", used), ("limited", quota.hard))
            parts = (
                f"{word}: {','.join(f'{name}={_quantity_text(of.get(name))}' for name in over)}" for word, of in said
            )
            name = obj["metadata"].get("name", "")
            raise Forbidden(f'{kind.key} "{name}" is forbidden: exceeded quota: {quota.name}, {", ".join(parts)}')


def with_quota_status(context: ServerContext, key: Key, stored: Object) -> Object:
    """A written object, after the quotas of its namespace were updated."""
    update_quota_status(context, key)
    return context.store.get(key) or stored if key.kind == QUOTAS_KEY else stored


def update_quota_status(context: ServerContext, key: Key) -> None:
    """Bring the statuses of a namespace's quotas up to date after a change of an object."""
    if key.kind not in (*_COUNTED, QUOTAS_KEY) or not key.namespace:
        return
    for name, stored in list(context.store.by_age(QUOTAS_KEY, key.namespace).items()):
        quota = _enforced(stored)
        used = _used(context, key.namespace, quota)
        status = {
            "hard": {resource: _quantity_text(value) for resource, value in quota.hard.items()},
            "used": {resource: _quantity_text(used.get(resource)) for resource in quota.hard},
        }
        if stored.get("status") != status:
            context.store.put(Key(QUOTAS_KEY, key.namespace, name), {**stored, "status": status})


def _enforced(stored: Object) -> ResourceQuota:
    return read_resource_quota({**stored, "status": {}})


def _used(context: ServerContext, namespace: str, quota: ResourceQuota) -> dict[str, Decimal]:
    used: dict[str, Decimal] = {}
    for kind, obj in _counted(context, namespace):
        for resource, value in _need(quota, kind, obj).items():
            used[resource] = used.get(resource, Decimal(0)) + value
    return used


def _counted(context: ServerContext, namespace: str) -> Iterator[tuple[str, Object]]:
    for kind in _COUNTED:
        for obj in context.store.by_age(kind, namespace).values():
            if not has_ended(obj):
                yield kind, obj


def _need(quota: ResourceQuota, kind: str, obj: Object) -> Mapping[str, Decimal]:
    if kind == "services":
        return quota.need(GangQuotaUsage((), _SERVICE), ())
    one: PodQuotaUsage = pod_quota_usage(obj["spec"])
    return quota.need(GangQuotaUsage((one,)), (1,))


def _quantity_text(value: Decimal | None) -> str:
    return f"{(value or Decimal(0)).normalize():f}"


# What a client may not set: these come from the server, or from the object as it was.
_STAMPS = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds")


def decode_body(kind: Kind, api_version: str, body: Any, old: Object | None = None) -> Object:
    """A private copy of a request's body, of the right type; BadRequest. What is as in ``old`` is taken as it is."""
    try:
        obj = deep_copy_json(body)
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
    return _typed(kind, obj, old)


# Parts of an object whose types are checked, and in which null means that a field is not set.
_DESIRED = ("spec", "rules", "roleRef", "subjects", "data", "stringData", "value", "template")


def _typed(kind: Kind, obj: Object, old: Object | None) -> Object:
    """The object if each value in it is of its type, without nulls; BadRequest, Invalid. In place."""
    type_ = type_of_kind(obj["apiVersion"], obj["kind"])
    if not type_:
        return obj
    # A field that the server does not know is passed over, and null in a mapping is as good as nothing.
    mistakes = [
        one
        for one in type_mistakes(obj, type_)
        if one.wanted == NOT_THERE
        or (one.wanted != UNKNOWN and (one.value is not None or isinstance(one.loc[-1], int)))
    ]
    if mistakes and old is not None:  # an older server may have stored it: its status can still be written
        stored = type_mistakes(old, type_)
        mistakes = [one for one in mistakes if one not in stored]
    for mistake in mistakes:
        if mistake.wanted != NOT_THERE:
            raise BadRequest(
                f'{obj["kind"]} in version "{kind.resource.version}" cannot be handled as a {obj["kind"]}: '
                f"{unmarshal_error(mistake)}"
            )
    missing = (Problem(format_field_path(one.loc), "Required value") for one in mistakes if one.loc[0] in _DESIRED)
    raise_if_invalid(kind, obj, missing)
    for field in obj.keys() & set(_DESIRED):
        obj[field] = _without_nulls(obj[field])
        if obj[field] is None:
            del obj[field]
    return obj


def unmarshal_error(mistake: TypeMistake) -> str:
    """What a server says about a value that is not of its type."""
    path = format_field_path(mistake.loc)
    return f"json: cannot unmarshal {_json_type(mistake.value)} into field {path} of type {mistake.wanted}"


def _json_type(value: object) -> str:
    match value:
        case bool():
            return "bool"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "null" if value is None else "object"


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def admit_create(context: ServerContext, kind: Kind, obj: Object) -> Object:
    """A created object with server-set metadata and defaults; Invalid, Forbidden."""
    metadata = obj["metadata"]
    for field in (*_STAMPS, "resourceVersion", "selfLink", "managedFields"):
        metadata.pop(field, None)
    metadata["uid"] = context.uids()
    metadata["creationTimestamp"] = context.now()
    set_default_labels(kind, metadata)
    if kind.generation:
        metadata["generation"] = 1
    if kind.status and kind.key != "nodes":
        obj.pop("status", None)
    obj = _apply_rules(context, kind, obj)
    if complete := CREATE_DEFAULTS.get(kind.key):
        complete(context, obj)
    return obj


def admit_update(context: ServerContext, kind: Kind, old: Object, new: Object, subresource: str) -> Object:
    """The object after an update: status (or spec) and server-set metadata stay as they were; Invalid."""
    metadata = old["metadata"] if subresource else _kept_metadata(old, new)
    if subresource:
        return {**old, subresource: new.get(subresource) or {}}
    set_default_labels(kind, metadata)
    new = {**new, "metadata": metadata}
    if kind.status:
        new.pop("status", None)
        if "status" in old:
            new["status"] = old["status"]
    if _without_metadata(new) == _without_metadata(old):
        raise_if_invalid(kind, new, _metadata_problems(kind, new, old))
        return new
    new = _apply_rules(context, kind, deep_copy_json(new), old)
    if kind.generation and _without_metadata(new) != _without_metadata(old):
        new["metadata"]["generation"] = metadata.get("generation", 1) + 1
    return new


def _kept_metadata(old: Object, new: Object) -> Object:
    before = old["metadata"]
    metadata = {key: value for key, value in new["metadata"].items() if key not in _STAMPS}
    metadata |= {key: before[key] for key in ("name", "namespace", *_STAMPS) if key in before}
    metadata.pop("managedFields", None)
    return {**metadata, "resourceVersion": before["resourceVersion"]}


def _without_metadata(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key not in ("metadata", "status", "apiVersion")}


def _apply_rules(context: ServerContext, kind: Kind, obj: Object, old: Object | None = None) -> Object:
    """Defaults, then rules, then the validator that the cluster was given for this kind."""
    raise_if_invalid(kind, obj, _metadata_problems(kind, obj, old))
    rules = KIND_RULES.get(kind.key)
    if rules:
        rules(kind, obj, old)
    validator = context.validators.get((kind.resource.group, kind.resource.kind))
    return _run_validator(kind, obj, old, validator) if validator else obj


def _run_validator(kind: Kind, obj: Object, old: Object | None, validator: Validator) -> Object:
    metadata = obj["metadata"]
    try:
        checked = deep_copy_json(validator(obj, old))
    except InvalidJob as error:
        raise Invalid(error_subject(kind, obj), error.problems) from error
    # The validator may default anything but the identity.
    return {**checked, "metadata": {**(checked.get("metadata") or {}), **metadata}}


def _metadata_problems(kind: Kind, obj: Object, old: Object | None) -> Iterator[Problem]:
    metadata = obj["metadata"]
    if problem := object_validation.name_problem(kind.names, metadata.get("name", ""), "metadata.name"):
        yield problem
    for field in ("labels", "annotations"):
        if not isinstance(metadata.get(field) or {}, Mapping):
            yield Problem(f"metadata.{field}", "Invalid value: must be an object")
    yield from object_validation.label_problems(metadata.get("labels"))
    yield from object_validation.annotation_problems(metadata.get("annotations"))
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

"""API server admission: checks of types, defaults, the rules of each kind, and ResourceQuota.

These are the steps of an API server from a request's body to a stored object. Rules change the object, which is a
private copy, in place.
"""

from __future__ import annotations

import base64
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from tf_dist.cluster.api import LIMIT_RANGES, PRIORITY_CLASSES, Object, has_ended
from tf_dist.cluster.api_errors import AdmissionDenied, BadRequest, Invalid
from tf_dist.cluster.apiserver.storage.api_resources import Kind, ResourceRegistry, kind_from_crd
from tf_dist.cluster.apiserver.storage.store import Clock, Key, Store, deep_copy_json
from tf_dist.core.dialects.companions import check_companion
from tf_dist.core.dialects.field_errors import MISSING, FieldErrors
from tf_dist.core.dialects.pod_rules import check_rules
from tf_dist.core.dialects.pod_template import DEFAULT_GRACE_SECONDS, check_spec, require_container
from tf_dist.core.gang.resources.admission_config import container_defaults
from tf_dist.core.gang.resources.pod_requests import with_container_defaults
from tf_dist.core.gang.resources.resource_quota import pod_quota_usage, read_resource_quota
from tf_dist.core.gang.types import GangQuotaUsage, ResourceQuota
from tf_dist.core.model.fieldpath import format_field_path
from tf_dist.core.model.names import is_label_key, is_label_value
from tf_dist.core.model.timestamps import format_time
from tf_dist.core.openapi.kubernetes_types import NOT_THERE, UNKNOWN, TypeMistake, type_mistakes, type_of_kind
from tf_dist.errors import Forbidden, InvalidJob, Problem

Validator = Callable[[Object, Object | None], Object]
"""Takes the new object and the stored one (None: no object). Returns the object with defaults, or raises InvalidJob."""
_MAX_ANNOTATIONS: Final = 256 * 1024  # bytes of all keys and values


@dataclass(frozen=True, slots=True)
class ServerContext:
    """The store, the kinds, and the sources of time, uids and random numbers.

    ``any_priority_class``: a pod may name a missing PriorityClass, and then has priority 0.
    """

    store: Store
    registry: ResourceRegistry
    clock: Clock
    uids: Callable[[], str]
    dice: random.Random
    validators: Mapping[tuple[str, str], Validator]
    any_priority_class: bool = False

    def now(self) -> str:
        """The current time in the format of objects."""
        return format_time(self.clock())


def error_subject(kind: Kind, obj: Object) -> str:
    """``Pod "x"``: the subject of an Invalid."""
    return f'{kind.shown} "{obj["metadata"].get("name", "")}"'


def _require(kind: Kind, obj: Object, problems: Iterable[Problem]) -> None:
    """Raise Invalid if there is any problem."""
    if found := tuple(problems):
        raise Invalid(error_subject(kind, obj), found)


# 1. Decode

# Parts of an object whose required fields are checked, and in which null means that a field is not set.
_DESIRED: Final = ("spec", "data", "stringData", "value", "template")


def decode_body(kind: Kind, api_version: str, body: Any, old: Object | None = None) -> Object:
    """A private copy of a request's body with checked types; BadRequest, Invalid. Parts equal to ``old`` are not
    checked.
    """
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
    type_ = type_of_kind(obj["apiVersion"], obj["kind"])
    return _typed(kind, obj, type_, old) if type_ else obj


def _typed(kind: Kind, obj: Object, type_: str, old: Object | None) -> Object:
    # Unknown fields are ignored, and null in a mapping means that the field is not set.
    mistakes = [
        one
        for one in type_mistakes(obj, type_)
        if one.wanted == NOT_THERE
        or (one.wanted != UNKNOWN and (one.value is not None or isinstance(one.loc[-1], int)))
    ]
    if mistakes and old is not None:  # mistakes that an older server has stored do not block updates
        stored = type_mistakes(old, type_)
        mistakes = [one for one in mistakes if one not in stored]
    if wrong := next((one for one in mistakes if one.wanted != NOT_THERE), None):
        named = f'{obj["kind"]} in version "{kind.resource.version}" cannot be handled as a {obj["kind"]}'
        raise BadRequest(f"{named}: {unmarshal_error(wrong)}")
    missing = (Problem(format_field_path(one.loc), "Required value") for one in mistakes if one.loc[0] in _DESIRED)
    _require(kind, obj, missing)
    for field in obj.keys() & set(_DESIRED):
        if obj[field] is None:
            del obj[field]
        else:
            _drop_nulls(obj[field])
    return obj


def unmarshal_error(mistake: TypeMistake) -> str:
    """The message about a value of the wrong type."""
    names = {bool: "bool", int: "number", float: "number", str: "string", list: "array", type(None): "null"}
    found = names.get(type(mistake.value), "object")
    return f"json: cannot unmarshal {found} into field {format_field_path(mistake.loc)} of type {mistake.wanted}"


def _drop_nulls(value: Any) -> None:
    """Remove fields that are null, in place."""
    if type(value) is dict:
        if None in value.values():
            for key in [key for key, item in value.items() if item is None]:
                del value[key]
        value = value.values()
    elif type(value) is not list:
        return
    for item in value:
        if type(item) is dict or type(item) is list:
            _drop_nulls(item)


# 2. Admit: metadata of the server, defaults and rules

# Fields that clients cannot set: they come from the server, or from the stored object.
_STAMPS: Final = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds")


def admit_create(context: ServerContext, kind: Kind, obj: Object) -> Object:
    """A created object with server-set metadata and defaults; Invalid, Forbidden."""
    metadata = obj["metadata"]
    for field in (*_STAMPS, "resourceVersion", "selfLink", "managedFields"):
        metadata.pop(field, None)
    metadata["uid"] = context.uids()
    metadata["creationTimestamp"] = context.now()
    if kind.generation:
        metadata["generation"] = 1
    if kind.status and kind.key != "nodes":
        obj.pop("status", None)
    obj = _apply_rules(context, kind, obj, None)
    if complete := _COMPLETIONS.get(kind.key):
        complete(context, obj)
    return obj


def admit_update(context: ServerContext, kind: Kind, old: Object, new: Object, subresource: str) -> Object:
    """The object after an update: status (or spec) and server-set metadata stay as they were; Invalid."""
    if subresource:
        return {**old, subresource: new.get(subresource) or {}}
    before = old["metadata"]
    metadata = {key: value for key, value in new["metadata"].items() if key not in (*_STAMPS, "managedFields")}
    metadata |= {key: before[key] for key in ("name", "namespace", "resourceVersion", *_STAMPS) if key in before}
    new = {**new, "metadata": metadata}
    if kind.status:
        new.pop("status", None)
        if "status" in old:
            new["status"] = old["status"]
    if _without_metadata(new) == _without_metadata(old):
        _check_metadata(kind, new, old)
        return new
    new = _apply_rules(context, kind, deep_copy_json(new), old)
    if kind.generation and _without_metadata(new) != _without_metadata(old):
        new["metadata"]["generation"] = metadata.get("generation", 1) + 1
    return new


def _without_metadata(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key not in ("metadata", "status", "apiVersion")}


def _apply_rules(context: ServerContext, kind: Kind, obj: Object, old: Object | None) -> Object:
    """Check the metadata, apply the kind's rules, and then the cluster's validator for this kind."""
    _check_metadata(kind, obj, old)
    if rules := _RULES.get(kind.key):
        rules(kind, obj, old)
    validator = context.validators.get((kind.resource.group, kind.resource.kind))
    if validator is None:
        return obj
    try:
        checked = deep_copy_json(validator(obj, old))
    except InvalidJob as error:
        raise Invalid(error_subject(kind, obj), error.problems) from error
    # The validator may set defaults, but not replace existing metadata.
    return {**checked, "metadata": {**(checked.get("metadata") or {}), **obj["metadata"]}}


def _check_metadata(kind: Kind, obj: Object, old: Object | None) -> None:
    metadata = obj["metadata"]
    _require(kind, obj, _metadata_problems(kind, metadata, (old or {}).get("metadata", {})))
    if kind.key == "namespaces":  # every namespace has this label, even if a client sets another value
        metadata["labels"] = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": metadata["name"]}


def _metadata_problems(kind: Kind, metadata: Object, before: Object) -> Iterator[Problem]:
    name, rule = metadata.get("name", ""), kind.names
    if not name:
        yield Problem("metadata.name", "Required value: name or generateName is required")
    elif len(name) > rule.longest:
        yield Problem("metadata.name", f'Invalid value: "{name}": must be no more than {rule.longest} characters')
    elif not rule.pattern.fullmatch(name):
        yield Problem("metadata.name", f'Invalid value: "{name}": must be {rule.title}, such as my-name')
    for field in ("labels", "annotations"):
        entries = metadata.get(field) or {}
        if not isinstance(entries, Mapping):
            yield Problem(f"metadata.{field}", "Invalid value: must be an object")
            return
        for key, value in entries.items():
            if not is_label_key(key):
                yield Problem(f"metadata.{field}", f'Invalid value: "{key}": must be a qualified name')
            if not isinstance(value, str):
                yield Problem(f"metadata.{field}.{key}", f"Invalid value: {value!r}: must be a string")
            elif field == "labels" and not is_label_value(value):
                yield Problem("metadata.labels", f'Invalid value: "{value}": a label is at most 63 of [-A-Za-z0-9_.]')
    if sum(len(key) + len(str(value)) for key, value in (metadata.get("annotations") or {}).items()) > _MAX_ANNOTATIONS:
        yield Problem("metadata.annotations", f"Too long: must have at most {_MAX_ANNOTATIONS} bytes")
    owners = metadata.get("ownerReferences") or []
    if not isinstance(owners, list) or not all(isinstance(owner, Mapping) for owner in owners):
        yield Problem("metadata.ownerReferences", "Invalid value: must be a list of objects")
        return
    for at, owner in enumerate(owners):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not isinstance(owner.get(field), str) or not owner[field]:
                yield Problem(f"metadata.ownerReferences[{at}].{field}", "Invalid value: must not be empty")
    if sum(owner.get("controller") is True for owner in owners) > 1:
        yield Problem("metadata.ownerReferences", "Invalid value: only one reference can have controller set to true")
    finalizers = metadata.get("finalizers") or []
    if not isinstance(finalizers, list) or not all(isinstance(item, str) and item for item in finalizers):
        yield Problem("metadata.finalizers", "Invalid value: must be a list of names")
    elif before.get("deletionTimestamp") and set(finalizers) - set(before.get("finalizers") or ()):
        yield Problem("metadata.finalizers", "Forbidden: no new finalizers can be added if the object is being deleted")


# 3. The rules of each kind, and the completion of new objects

_POD_DEFAULTS: Final = {
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "terminationGracePeriodSeconds": DEFAULT_GRACE_SECONDS,
    "enableServiceLinks": True,
}


def _pod_rules(kind: Kind, pod: Object, old: Object | None) -> None:
    if not pod.get("spec"):
        _require(kind, pod, [Problem("spec.containers", "Required value")])
    set_pod_defaults(pod)
    if old is None or pod["spec"] != old["spec"]:
        _require(kind, pod, _pod_spec_problems(pod))
    if old:
        _require(kind, pod, _pod_update_problems(old["spec"], pod["spec"]))


def set_pod_defaults(pod: Object) -> None:
    """Set the defaults of an API server, in place."""
    spec = pod["spec"]
    for field, value in _POD_DEFAULTS.items():
        if spec.get(field) is None:
            spec[field] = value
    spec.setdefault("securityContext", {})
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        resources = container.setdefault("resources", {})
        image = str(container.get("image", ""))
        floating = "@" not in image and (":" not in image.rpartition("/")[2] or image.endswith(":latest"))
        container.setdefault("imagePullPolicy", "Always" if floating else "IfNotPresent")
        for port in container.get("ports") or ():
            port.setdefault("protocol", "TCP")
            if spec.get("hostNetwork") is True and "containerPort" in port:
                port.setdefault("hostPort", port["containerPort"])
        if limits := resources.get("limits"):  # a limit without a request is also the request
            resources["requests"] = {**limits, **(resources.get("requests") or {})}


def _pod_spec_problems(pod: Object) -> Iterator[Problem]:
    """The violations of a pod with correct types, in the words of an API server."""
    out = FieldErrors(strict=False, advice=False)
    require_container(pod, (), out)
    check_rules(pod["spec"], "PodSpec", ("spec",), out)
    check_spec(pod["spec"], ("spec",), out)
    return _in_words_of_server(out.errors)


def _in_words_of_server(problems: Iterable[Problem]) -> Iterator[Problem]:
    for problem in problems:
        if problem.message == MISSING:
            yield Problem(problem.path, "Required value", problem.hint)
        elif problem.message.startswith("unknown value"):
            yield Problem(problem.path, problem.message.replace("unknown value", "Unsupported value:", 1), problem.hint)
        else:
            yield Problem(problem.path, f"Invalid value: {problem.message}", problem.hint)


def _pod_update_problems(old: Object, new: Object) -> Iterator[Problem]:
    """A pod's spec is fixed, except images, deadlines, tolerations and gates; while gated, also its nodes."""
    gates = old.get("schedulingGates") or []
    free = {"activeDeadlineSeconds", "tolerations", "schedulingGates"}
    free |= {"nodeSelector", "affinity"} if gates else set()

    def fixed(spec: Object) -> Object:
        containers = {
            field: [{**container, "image": ""} for container in spec.get(field) or ()]
            for field in ("containers", "initContainers")
        }
        return {**{field: value for field, value in spec.items() if field not in free}, **containers}

    if fixed(old) != fixed(new):
        yield Problem(
            "spec",
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`, "
            "`spec.initContainers[*].image`, `spec.activeDeadlineSeconds`, `spec.tolerations`",
        )
    if any(gate not in gates for gate in new.get("schedulingGates") or ()):
        yield Problem("spec.schedulingGates", "Forbidden: only deletion is allowed")


def _new_pod(context: ServerContext, pod: Object) -> None:
    spec, namespace = pod["spec"], pod["metadata"].get("namespace", "")
    if limits := container_defaults(context.store.by_age(LIMIT_RANGES.plural, namespace).values()).get(namespace):
        spec.update(deep_copy_json(with_container_defaults(spec, limits)))
    classes = context.store.by_age(_CLASSES, "")
    if not spec.get("priorityClassName"):
        defaults = [(one.get("value") or 0, name) for name, one in classes.items() if one.get("globalDefault")]
        if defaults:
            spec["priorityClassName"] = min(defaults)[1]  # of several defaults, the lowest
    if name := spec.get("priorityClassName"):
        if name not in classes and name not in _SYSTEM_PRIORITIES and not context.any_priority_class:
            raise AdmissionDenied(f"no PriorityClass with name {name} was found")
        spec["priority"] = int(classes.get(name, {}).get("value") or _SYSTEM_PRIORITIES.get(name, 0))
    spec.setdefault("priority", 0)
    pod["status"] = {"phase": "Pending"}
    if spec.get("schedulingGates"):
        gated = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
            "lastProbeTime": None,
            "lastTransitionTime": pod["metadata"]["creationTimestamp"],
        }
        pod["status"]["conditions"] = [gated]


_CLASSES: Final = f"{PRIORITY_CLASSES.plural}.{PRIORITY_CLASSES.group}"
_SYSTEM_PRIORITIES: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def _companion_rules(kind: Kind, obj: Object, old: Object | None) -> None:
    out = FieldErrors(strict=False, advice=False)
    check_companion(obj, out)
    _require(kind, obj, _in_words_of_server(out.errors))


def _service_rules(kind: Kind, service: Object, old: Object | None) -> None:
    spec = service.setdefault("spec", {})
    ports = spec.get("ports") or []
    _companion_rules(kind, service, old)
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    for port in ports:
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port["port"])
    if old and old["spec"].get("clusterIP"):
        spec.setdefault("clusterIP", old["spec"]["clusterIP"])


def _new_service(context: ServerContext, service: Object) -> None:
    spec = service["spec"]
    if spec["type"] != "ExternalName" and not spec.get("clusterIP"):
        # No traffic is routed to the address. Clients only expect each service to have an address.
        high, low = divmod(context.store.version % 64_000, 250)
        spec["clusterIP"] = f"10.96.{high}.{low + 2}"
    if spec.get("clusterIP"):
        spec["clusterIPs"] = [spec["clusterIP"]]
    service["status"] = {"loadBalancer": {}}


def _secret_rules(kind: Kind, secret: Object, old: Object | None) -> None:
    _companion_rules(kind, secret, old)
    secret.setdefault("type", "Opaque")
    if plain := secret.pop("stringData", None):
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in plain.items()}
        secret["data"] = {**(secret.get("data") or {}), **encoded}


def _new_namespace(context: ServerContext, namespace: Object) -> None:
    namespace.setdefault("spec", {})["finalizers"] = ["kubernetes"]
    namespace["status"] = {"phase": "Active"}


def _crd_rules(kind: Kind, crd: Object, old: Object | None) -> None:
    try:
        custom = kind_from_crd(crd["spec"])
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        problem = Problem("spec", f"Required value: group, names.kind, names.plural and a served version ({error})")
        raise Invalid(error_subject(kind, crd), [problem]) from error
    if crd["metadata"]["name"] != custom.key:
        _require(kind, crd, [Problem("metadata.name", 'Invalid value: must be spec.names.plural+"."+spec.group')])


def _new_crd(context: ServerContext, crd: Object) -> None:
    spec, at = crd["spec"], crd["metadata"]["creationTimestamp"]
    crd["status"] = {
        "acceptedNames": {"listKind": f"{spec['names']['kind']}List", **spec["names"]},
        "storedVersions": [version["name"] for version in spec["versions"] if version.get("storage")],
        "conditions": [
            {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "lastTransitionTime": at},
            {"type": "Established", "status": "True", "reason": "InitialNamesAccepted", "lastTransitionTime": at},
        ],
    }


_RULES: Final[Mapping[str, Callable[[Kind, Object, Object | None], None]]] = {
    "pods": _pod_rules,
    "configmaps": _companion_rules,
    "persistentvolumeclaims": _companion_rules,
    "services": _service_rules,
    "secrets": _secret_rules,
    "customresourcedefinitions.apiextensions.k8s.io": _crd_rules,
}
_COMPLETIONS: Final[Mapping[str, Callable[[ServerContext, Object], None]]] = {
    "pods": _new_pod,
    "services": _new_service,
    "namespaces": _new_namespace,
    "persistentvolumeclaims": lambda context, claim: claim.update(status={"phase": "Pending"}),
    "customresourcedefinitions.apiextensions.k8s.io": _new_crd,
}


# 4. ResourceQuota, which counts pods and services

QUOTAS_KEY: Final = "resourcequotas"
_COUNTED: Final = ("pods", "services")


def check_quota(context: ServerContext, kind: Kind, obj: Object) -> None:
    """Forbidden if a new object would exceed a quota of its namespace."""
    namespace = obj["metadata"].get("namespace", "")
    if kind.key not in _COUNTED:
        return
    for stored in context.store.by_age(QUOTAS_KEY, namespace).values():
        quota = read_resource_quota({**stored, "status": {}})
        need, used = _need(quota, kind.key, obj), _used(context, namespace, quota)
        over = sorted(name for name, value in need.items() if used[name] + value > quota.hard[name])
        if over:
            parts = (
                f"{word}: {','.join(f'{name}={_quantity_text(of.get(name, Decimal(0)))}' for name in over)}"
                for word, of in (("requested", need), ("used", used), ("limited", quota.hard))
            )
            name = obj["metadata"].get("name", "")
            raise Forbidden(f'{kind.key} "{name}" is forbidden: exceeded quota: {quota.name}, {", ".join(parts)}')


def update_quota_status(context: ServerContext, key: Key) -> None:
    """Update the statuses of a namespace's quotas after a change of an object."""
    if key.kind not in (*_COUNTED, QUOTAS_KEY):
        return
    for name, stored in list(context.store.by_age(QUOTAS_KEY, key.namespace).items()):
        quota = read_resource_quota({**stored, "status": {}})
        used = _used(context, key.namespace, quota)
        status = {
            "hard": {resource: _quantity_text(value) for resource, value in quota.hard.items()},
            "used": {resource: _quantity_text(used[resource]) for resource in quota.hard},
        }
        if stored.get("status") != status:
            context.store.put(Key(QUOTAS_KEY, key.namespace, name), {**stored, "status": status})


def _used(context: ServerContext, namespace: str, quota: ResourceQuota) -> Mapping[str, Decimal]:
    used: dict[str, Decimal] = defaultdict(Decimal)
    for kind in _COUNTED:
        for obj in context.store.by_age(kind, namespace).values():
            for name, value in () if has_ended(obj) else _need(quota, kind, obj).items():
                used[name] += value
    return used


def _need(quota: ResourceQuota, kind: str, obj: Object) -> Mapping[str, Decimal]:
    if kind == "services":
        one = Decimal(1)
        return quota.need(GangQuotaUsage((), (("count/services", one), ("services", one))), ())
    return quota.need(GangQuotaUsage((pod_quota_usage(obj["spec"]),)), (1,))


def _quantity_text(value: Decimal) -> str:
    return f"{value.normalize():f}"

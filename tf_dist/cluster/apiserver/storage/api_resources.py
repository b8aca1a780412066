"""The API resources that are served: built-in kinds, kinds of CRDs, and their lookup for a request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tf_dist.cluster import api
from tf_dist.cluster.api import Object, Resource
from tf_dist.cluster.api_errors import BadRequest
from tf_dist.cluster.apiserver.storage.store import Key
from tf_dist.cluster.printer_columns import (
    QUEUE_COLUMNS,
    TFJOB_COLUMNS,
    VOLCANO_JOB_COLUMNS,
    AdditionalPrinterColumn,
)
from tf_dist.errors import NotFound


@dataclass(frozen=True, slots=True)
class NameRule:
    """A rule for names."""

    title: str  # as errors show it
    pattern: re.Pattern[str]
    longest: int  # characters


_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = NameRule("a lowercase RFC 1123 subdomain", re.compile(rf"{_LABEL}(\.{_LABEL})*"), 253)
LABEL = NameRule("a lowercase RFC 1123 label", re.compile(_LABEL), 63)
LABEL_1035 = NameRule("a DNS-1035 label", re.compile("[a-z]([-a-z0-9]*[a-z0-9])?"), 63)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind that is served: its preferred version, and the traits that decide how its objects are treated."""

    resource: Resource  # at the preferred version, at which objects are stored
    singular: str  # as in kubectl get pod
    short_names: tuple[str, ...] = ()  # as in kubectl get po
    categories: tuple[str, ...] = ()  # as in kubectl get all
    other_versions: tuple[str, ...] = ()  # in addition to the preferred version
    names: NameRule = SUBDOMAIN  # of its objects
    status: bool = False  # has a status subresource
    generation: bool = False  # counts changes of everything but metadata and status
    unconditional: bool = True  # may be replaced without a resourceVersion
    custom: bool = False  # as a custom resource: lists never merge by key
    columns: tuple[AdditionalPrinterColumn, ...] = ()  # of kubectl get, after the name; none: the age

    @property
    def key(self) -> str:
        """``pods`` or ``tfjobs.kubeflow.org``: the name in errors, and the key of its objects in the store."""
        return f"{self.resource.plural}.{self.resource.group}" if self.resource.group else self.resource.plural

    @property
    def versions(self) -> tuple[str, ...]:
        """All served versions, the preferred version first."""
        return (self.resource.version, *self.other_versions)

    @property
    def shown(self) -> str:
        """``Pod`` or ``TFJob.kubeflow.org``: the start of validation errors."""
        return f"{self.resource.kind}.{self.resource.group}" if self.resource.group else self.resource.kind


def _core(resource: Resource, *short: str, **traits: Any) -> Kind:
    return Kind(resource, resource.kind.lower(), short, **traits)


def _custom(resource: Resource, *short: str, **traits: Any) -> Kind:
    traits = {"status": True, "generation": True, "unconditional": False, "custom": True, **traits}
    return Kind(resource, resource.kind.lower(), short, **traits)


_ALL = ("all",)
_column = AdditionalPrinterColumn
_AGE = _column("Age", "metadata.creationTimestamp", "date")
CRDS = Resource("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)
VOLCANO_POD_GROUPS = Resource("scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups")

# Columns without a path are computed (``printing``).
_POD_COLUMNS = (
    _column("Ready", ""),
    _column("Status", ""),
    _column("Restarts", "", "integer"),
    _AGE,
    _column("IP", "status.podIP", priority=1),
    _column("Node", "spec.nodeName", priority=1),
)
_SERVICE_COLUMNS = (_column("Type", "spec.type"), _column("Cluster-IP", "spec.clusterIP"), _AGE)
_NODE_COLUMNS = (
    _column("Status", ""),
    _AGE,
    _column("Version", "status.nodeInfo.kubeletVersion"),
    _column("CPU", "status.allocatable.cpu", priority=1),
    _column("Memory", "status.allocatable.memory", priority=1),
)
_EVENT_COLUMNS = (
    _column("Last Seen", "lastTimestamp", "date"),
    _column("Type", "type"),
    _column("Reason", "reason"),
    _column("Object", ""),
    _column("Message", "message"),
)

BUILTIN_KINDS: tuple[Kind, ...] = (
    _core(api.PODS, "po", status=True, categories=_ALL, columns=_POD_COLUMNS),
    _core(api.SERVICES, "svc", status=True, categories=_ALL, names=LABEL_1035, columns=_SERVICE_COLUMNS),
    _core(api.CONFIG_MAPS, "cm"),
    _core(api.SECRETS),
    _core(api.EVENTS, "ev", columns=_EVENT_COLUMNS),
    _core(api.PERSISTENT_VOLUME_CLAIMS, "pvc", status=True, columns=(_column("Status", "status.phase"), _AGE)),
    _core(api.NODES, "no", status=True, columns=_NODE_COLUMNS),
    _core(api.NAMESPACES, "ns", status=True, names=LABEL, columns=(_column("Status", "status.phase"), _AGE)),
    _core(Resource("", "v1", "ServiceAccount", "serviceaccounts"), "sa"),
    _core(api.LEASES, unconditional=False),
    _core(api.NETWORK_POLICIES, "netpol", generation=True),
    _core(api.POD_DISRUPTION_BUDGETS, "pdb", status=True, generation=True, unconditional=False),
    _core(api.PRIORITY_CLASSES, "pc", generation=True, columns=(_column("Value", "value", "integer"), _AGE)),
    _core(api.RESOURCE_QUOTAS, "quota", status=True),
    _core(api.LIMIT_RANGES, "limits"),
    _core(api.RUNTIME_CLASSES),
    _core(CRDS, "crd", "crds", status=True, generation=True, unconditional=False),
    _custom(api.TFJOBS, "tfj", other_versions=("v1alpha1",), categories=_ALL, columns=TFJOB_COLUMNS),
    _custom(api.VOLCANO_JOBS, "vcjob", "vj", categories=_ALL, columns=VOLCANO_JOB_COLUMNS),
    # Before Volcano's queues: of two kinds with this name, kubectl get queues shows the kind of the first group.
    _custom(api.QUEUES, "tfq", columns=QUEUE_COLUMNS),
    _custom(VOLCANO_POD_GROUPS, "pg"),
    _custom(api.VOLCANO_QUEUES, "q"),
    _custom(api.VOLCANO_COMMANDS, status=False),
)


POD_SUBRESOURCES: Mapping[str, Mapping[str, Any]] = {
    # kubectl drain evicts only if discovery shows the group of the Eviction.
    "eviction": {"kind": "Eviction", "verbs": ["create"], "group": "policy", "version": "v1"},
    "log": {"verbs": ["get"]},
}
"""Subresources of pods in addition to their status, as discovery lists them."""


class ResourceRegistry:
    """The kinds that are served now. Not thread-safe: the cluster's lock guards it."""

    def __init__(self, kinds: Iterable[Kind] = BUILTIN_KINDS) -> None:
        self._kinds = {kind.key: kind for kind in kinds}
        self._own = frozenset(self._kinds)
        self._by_kind = {(kind.resource.group, kind.resource.kind): kind for kind in self._kinds.values()}

    def __iter__(self) -> Iterator[Kind]:
        return iter(tuple(self._kinds.values()))

    def find(self, group: str, version: str, plural: str) -> Kind:
        """The kind that is served with this group, version and plural; NotFound."""
        kind = self._kinds.get(f"{plural}.{group}" if group else plural)
        if kind is None or version not in kind.versions:
            raise NotFound(f"the server could not find the requested resource ({group or 'core'}/{version} {plural})")
        return kind

    def scope(self, resource: Resource, subresource: str = "") -> RequestScope:
        """The kind and version of a request; NotFound, also for a subresource that cannot be written."""
        kind = self.find(resource.group, resource.version, resource.plural)
        if subresource and (subresource != "status" or not kind.status):
            raise NotFound(f"{kind.key} cannot be written through a subresource {subresource!r}")
        return RequestScope(kind, resource)

    def of(self, api_version: str, kind: str) -> Kind | None:
        """The kind that an owner reference names, if it is served."""
        group = api_version.rpartition("/")[0]
        return self._by_kind.get((group, kind))

    def define(self, crd: Object) -> None:
        """Serve the kind that a CustomResourceDefinition describes; a built-in kind does not change."""
        kind = kind_from_crd(crd["spec"])
        if kind.key not in self._own:
            self._kinds[kind.key] = kind
            self._by_kind[kind.resource.group, kind.resource.kind] = kind

    def forget(self, crd: Object) -> Kind | None:
        """Stop serving the kind of a CustomResourceDefinition. Returns the kind, unless it is built in."""
        kind = kind_from_crd(crd["spec"])
        if kind.key in self._own:
            return None
        self._by_kind.pop((kind.resource.group, kind.resource.kind), None)
        return self._kinds.pop(kind.key, None)


def kind_from_crd(spec: Mapping[str, Any]) -> Kind:
    """The kind that a CRD's spec describes: its storage version is the preferred one."""
    names = spec["names"]
    served = [version for version in spec["versions"] if version.get("served", True)]
    served.sort(key=lambda version: not version.get("storage"))
    words = (spec["group"], served[0]["name"], names["kind"], names["plural"])
    if not all(isinstance(word, str) for word in words):
        raise TypeError("these must be text")
    resource = Resource(*words, spec.get("scope") != "Cluster")
    return Kind(
        resource,
        names.get("singular") or names["kind"].lower(),
        tuple(names.get("shortNames") or ()),
        tuple(names.get("categories") or ()),
        tuple(version["name"] for version in served[1:]),
        status=any("status" in (version.get("subresources") or {}) for version in served),
        generation=True,
        unconditional=False,
        custom=True,
        columns=tuple(
            AdditionalPrinterColumn(one["name"], one["jsonPath"].lstrip("."), one["type"], one.get("priority", 0))
            for one in served[0].get("additionalPrinterColumns") or ()
        ),
    )


@dataclass(frozen=True, slots=True)
class RequestScope:
    """A kind at the version of ``resource``. Objects are stored at the preferred version and returned at this
    version.
    """

    kind: Kind
    resource: Resource

    def key(self, namespace: str | None, name: str) -> Key:
        """The key of an object in the store; BadRequest when its name or namespace is missing."""
        if not name:
            raise BadRequest(f"{self.kind.key} need a name, and none was given")
        if not self.kind.resource.namespaced:
            return Key(self.kind.key, "", name)
        if not namespace:
            raise BadRequest(f"an empty namespace may not be set when {self.kind.key} are asked for by name")
        return Key(self.kind.key, namespace, name)

    def view(self, obj: Object) -> Object:
        """A stored object at this version. As with a CRD without conversion, only the apiVersion changes."""
        version = self.resource.api_version
        return obj if obj["apiVersion"] == version else {**obj, "apiVersion": version}

    def bookmark(self, version: str, *, initial_end: bool = False) -> Object:
        """A bookmark at a version of the store; ``initial_end``: it ends the initial events."""
        metadata: Object = {"resourceVersion": version, "creationTimestamp": None}
        if initial_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        return {"apiVersion": self.resource.api_version, "kind": self.resource.kind, "metadata": metadata}

"""The API resources that are served: built-in kinds, those of CRDs, and how a request names one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tf_dist.cluster import api
from tf_dist.cluster.api import Object, Resource
from tf_dist.cluster.api_errors import BadRequest, MethodNotAllowed
from tf_dist.cluster.apiserver.storage.object_validation import NameRule
from tf_dist.cluster.apiserver.storage.store import Key
from tf_dist.cluster.printer_columns import (
    QUEUE_COLUMNS,
    TFJOB_COLUMNS,
    VOLCANO_JOB_COLUMNS,
    AdditionalPrinterColumn,
)
from tf_dist.errors import NotFound


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind that is served: its preferred version, and the traits that decide how its objects are treated."""

    resource: Resource
    singular: str
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    other_versions: tuple[str, ...] = ()
    names: NameRule = NameRule.SUBDOMAIN
    status: bool = False  # has a status subresource
    generation: bool = False  # counts changes of everything but metadata and status
    unconditional: bool = True  # may be replaced without a resourceVersion
    custom: bool = False  # as a custom resource: lists never merge by key
    columns: tuple[AdditionalPrinterColumn, ...] = ()

    @property
    def key(self) -> str:
        """``pods`` or ``tfjobs.kubeflow.org``: what errors call it, and what its objects are stored under."""
        return f"{self.resource.plural}.{self.resource.group}" if self.resource.group else self.resource.plural

    @property
    def versions(self) -> tuple[str, ...]:
        """All versions it is served at, the preferred one first."""
        return (self.resource.version, *self.other_versions)

    @property
    def shown(self) -> str:
        """``Pod`` or ``TFJob.kubeflow.org``: how validation errors begin."""
        return f"{self.resource.kind}.{self.resource.group}" if self.resource.group else self.resource.kind


def _core(resource: Resource, *short: str, **traits: Any) -> Kind:
    return Kind(resource, resource.kind.lower(), short, **traits)


def _custom(resource: Resource, *short: str, **traits: Any) -> Kind:
    traits = {"status": True, "generation": True, "unconditional": False, "custom": True, **traits}
    return Kind(resource, resource.kind.lower(), short, **traits)


_RBAC = "rbac.authorization.k8s.io"
_ALL = ("all",)
CRDS = Resource("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)
JOBS = Resource("batch", "v1", "Job", "jobs")
VOLCANO_POD_GROUPS = Resource("scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups")

BUILTIN_KINDS: tuple[Kind, ...] = (
    _core(api.PODS, "po", status=True, categories=_ALL),
    _core(api.SERVICES, "svc", status=True, categories=_ALL, names=NameRule.LABEL_1035),
    _core(api.CONFIG_MAPS, "cm"),
    _core(api.SECRETS),
    _core(api.EVENTS, "ev"),
    _core(api.PERSISTENT_VOLUME_CLAIMS, "pvc", status=True),
    _core(api.NODES, "no", status=True),
    _core(api.NAMESPACES, "ns", status=True, names=NameRule.LABEL),
    _core(Resource("", "v1", "ServiceAccount", "serviceaccounts"), "sa"),
    _core(Resource("", "v1", "Endpoints", "endpoints"), "ep"),
    _core(Resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"), generation=True),
    _core(api.LEASES, unconditional=False),
    _core(api.NETWORK_POLICIES, "netpol", generation=True),
    _core(api.PRIORITY_CLASSES, "pc", generation=True),
    _core(api.RESOURCE_QUOTAS, "quota", status=True),
    _core(api.LIMIT_RANGES, "limits"),
    _core(api.RUNTIME_CLASSES),
    _core(api.POD_DISRUPTION_BUDGETS, "pdb", status=True, generation=True, unconditional=False),
    _core(JOBS, status=True, generation=True, categories=_ALL),
    _core(Resource(_RBAC, "v1", "Role", "roles"), names=NameRule.PATH_SEGMENT),
    _core(Resource(_RBAC, "v1", "RoleBinding", "rolebindings"), names=NameRule.PATH_SEGMENT),
    _core(Resource(_RBAC, "v1", "ClusterRole", "clusterroles", namespaced=False), names=NameRule.PATH_SEGMENT),
    _core(
        Resource(_RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False),
        names=NameRule.PATH_SEGMENT,
    ),
    _core(CRDS, "crd", "crds", status=True, generation=True, unconditional=False),
    _custom(api.TFJOBS, "tfj", other_versions=("v1alpha1",), categories=_ALL, columns=TFJOB_COLUMNS),
    _custom(api.VOLCANO_JOBS, "vcjob", "vj", categories=_ALL, columns=VOLCANO_JOB_COLUMNS),
    # Before Volcano's: of two kinds of that name, kubectl get queues shows the first group's.
    _custom(api.QUEUES, "tfq", columns=QUEUE_COLUMNS),
    _custom(VOLCANO_POD_GROUPS, "pg"),
    _custom(api.VOLCANO_QUEUES, "q"),
    _custom(api.VOLCANO_COMMANDS, status=False),
)


POD_SUBRESOURCES: Mapping[str, tuple[str, str]] = {
    "binding": ("Binding", "create"),
    "eviction": ("Eviction", "create"),
    "log": ("Pod", "get"),
}
"""Subresources of pods beside their status: the kind and the verb of each."""


class ResourceRegistry:
    """The kinds that are served now. Not thread-safe: the cluster's lock guards it."""

    def __init__(self, kinds: Iterable[Kind] = BUILTIN_KINDS) -> None:
        self._kinds = {kind.key: kind for kind in kinds}
        self._own = frozenset(self._kinds)
        self._by_kind = {(kind.resource.group, kind.resource.kind): kind for kind in self._kinds.values()}

    def __iter__(self) -> Iterator[Kind]:
        return iter(tuple(self._kinds.values()))

    def find(self, group: str, version: str, plural: str) -> Kind:
        """The kind served at a place of the API; NotFound."""
        kind = self._kinds.get(f"{plural}.{group}" if group else plural)
        if kind is None or version not in kind.versions:
            raise NotFound(f"the server could not find the requested resource ({group or 'core'}/{version} {plural})")
        return kind

    def by_key(self, key: str) -> Kind:
        """The kind that objects are stored under as ``key``."""
        return self._kinds[key]

    def of(self, api_version: str, kind: str) -> Kind | None:
        """The kind that an owner reference names, if it is served."""
        group = api_version.rpartition("/")[0]
        return self._by_kind.get((group, kind))

    def define(self, crd: Object) -> None:
        """Serve the kind that a CustomResourceDefinition describes; a built-in kind stays as it is."""
        kind = kind_from_crd(crd["spec"])
        if kind.key not in self._own:
            self._kinds[kind.key] = kind
            self._by_kind[kind.resource.group, kind.resource.kind] = kind

    def forget(self, crd: Object) -> Kind | None:
        """Stop serving that kind; the kind, unless it is built in."""
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
    resource = Resource(
        spec["group"], served[0]["name"], names["kind"], names["plural"], spec.get("scope") != "Cluster"
    )
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
        columns=tuple(_columns(served[0])),
    )


def _columns(version: Mapping[str, Any]) -> Iterator[AdditionalPrinterColumn]:
    for column in version.get("additionalPrinterColumns") or ():
        yield AdditionalPrinterColumn(
            column["name"], column["jsonPath"].lstrip("."), column["type"], column.get("priority", 0)
        )


@dataclass(frozen=True, slots=True)
class RequestScope:
    """A kind as ``resource`` names it. Objects are stored at the kind's preferred version and shown at this one."""

    kind: Kind
    resource: Resource

    def key(self, namespace: str | None, name: str) -> Key:
        """Where the store has an object; BadRequest when its name or namespace is missing."""
        if not name:
            raise BadRequest(f"{self.kind.key} are asked for by name, and none was given")
        if not self.kind.resource.namespaced:
            return Key(self.kind.key, "", name)
        if not namespace:
            raise BadRequest(f"an empty namespace may not be set when {self.kind.key} are asked for by name")
        return Key(self.kind.key, namespace, name)

    def view(self, obj: Object) -> Object:
        """A stored object at this version. As with a CRD without conversion: only its apiVersion is another."""
        return obj if self._preferred else {**obj, "apiVersion": self.resource.api_version}

    def views(self, objects: list[Object]) -> list[Object]:
        """Many of them; the same list where nothing changes."""
        return objects if self._preferred else [self.view(obj) for obj in objects]

    @property
    def _preferred(self) -> bool:
        return self.resource.version == self.kind.resource.version

    def bookmark(self, version: str, *, initial_end: bool = False) -> Object:
        """A bookmark at a version of the store; ``initial_end``: it ends the initial events."""
        metadata: Object = {"resourceVersion": version, "creationTimestamp": None}
        if initial_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        return {"apiVersion": self.resource.api_version, "kind": self.resource.kind, "metadata": metadata}


def request_scope(registry: ResourceRegistry, resource: Resource, subresource: str = "") -> RequestScope:
    """The kind and version of a request; NotFound, MethodNotAllowed (no write through this subresource)."""
    kind = registry.find(resource.group, resource.version, resource.plural)
    if subresource and (subresource != "status" or not kind.status):
        wrong = MethodNotAllowed if subresource in POD_SUBRESOURCES else NotFound
        raise wrong(f"{kind.key} cannot be written through a subresource {subresource!r}")
    return RequestScope(kind, resource)

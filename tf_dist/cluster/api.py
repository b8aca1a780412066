"""The Cluster protocol: nine verbs over plain dicts, and the resources of tf-dist.

Objects are dicts in the Kubernetes wire form. A verb raises only ``tf_dist.errors.ClusterError`` and its subclasses.
Never change a dict that a verb returned: copy it first (implementations share memory where they can).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

Object = dict[str, Any]
KUBERNETES_VERSION: Final = "v1.34.0+tf-dist"
"""The release whose behaviour the embedded API server and its node follow; kubectl accepts one minor version more."""
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object and its location in the API."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """``v1`` or ``group/version``, as in an object's ``apiVersion``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def label(self) -> str:
        """The name in metrics, log lines and threads: the plural, with its group if two groups have the same plural."""
        return f"{self.plural}.{self.group}" if self.group == "scheduling.volcano.sh" else self.plural

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """The REST path of a collection (no name), an object, or a subresource of it."""
        parts = ["", "apis", self.group, self.version] if self.group else ["", "api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/".join(parts)


PODS = Resource("", "v1", "Pod", "pods")
SERVICES = Resource("", "v1", "Service", "services")
CONFIG_MAPS = Resource("", "v1", "ConfigMap", "configmaps")
SECRETS = Resource("", "v1", "Secret", "secrets")
EVENTS = Resource("", "v1", "Event", "events")
PERSISTENT_VOLUME_CLAIMS = Resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
NODES = Resource("", "v1", "Node", "nodes", namespaced=False)
NAMESPACES = Resource("", "v1", "Namespace", "namespaces", namespaced=False)
LEASES = Resource("coordination.k8s.io", "v1", "Lease", "leases")
POD_DISRUPTION_BUDGETS = Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
TFJOBS = Resource("kubeflow.org", "v1", "TFJob", "tfjobs")
TFJOBS_V1ALPHA1 = Resource("kubeflow.org", "v1alpha1", "TFJob", "tfjobs")
VOLCANO_JOBS = Resource("batch.volcano.sh", "v1alpha1", "Job", "jobs")
VOLCANO_COMMANDS = Resource("bus.volcano.sh", "v1alpha1", "Command", "commands")
JOB_KINDS = (TFJOBS, VOLCANO_JOBS)
VOLCANO_QUEUES = Resource("scheduling.volcano.sh", "v1beta1", "Queue", "queues", namespaced=False)
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False)
RESOURCE_QUOTAS = Resource("", "v1", "ResourceQuota", "resourcequotas")
LIMIT_RANGES = Resource("", "v1", "LimitRange", "limitranges")
RUNTIME_CLASSES = Resource("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", namespaced=False)
QUEUES = Resource("tf-dist.dev", "v1alpha1", "Queue", "queues", namespaced=False)

TERMINAL_PHASES = ("Succeeded", "Failed")  # of a pod; a tuple, because a stored phase may be unhashable


def has_ended(pod: Object) -> bool:
    """Whether a pod has ended and will not run again."""
    return (pod.get("status") or {}).get("phase") in TERMINAL_PHASES


def new_event(
    resource: Resource, about: Object, *, type: str, reason: str, message: str, source: Object, now: str
) -> Object:
    """A core/v1 Event about an object of that kind, without a name. ``now``: an RFC 3339 time."""
    metadata = about["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "involvedObject": {
            "apiVersion": about.get("apiVersion", resource.api_version),
            "kind": resource.kind,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": type,
        "reason": reason,
        "message": message,
        "source": source,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


class PatchType(StrEnum):
    """The format of a patch body; the value is the content type."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """The lines of a container's log to read, and their form: Kubernetes' PodLogOptions.

    ``container`` "": the only container. ``tail``: the number of last lines. ``since_seconds`` or ``since_time`` (RFC
    3339): the oldest line. ``follow``: read until the container ends. ``previous``: the log of the instance before the
    last restart.
    """

    container: str = ""
    follow: bool = False
    tail: int | None = None
    since_seconds: float | None = None
    since_time: str = ""
    timestamps: bool = False
    previous: bool = False


ALL_LINES = LogOptions()


class ObjectList(NamedTuple):
    """The result of a list: the objects, the version to watch from, and the token of the next page ("" after
    the last).
    """

    items: list[Object]
    resource_version: str
    continue_: str = ""


class WatchEvent(NamedTuple):
    """One change: ADDED, MODIFIED, DELETED or BOOKMARK, and the object after the change."""

    type: str
    object: Object


class Stream(Iterator[T_co], ABC):
    """An iterator that any thread may end: after ``close`` the reader's next step raises StopIteration at once."""

    @abstractmethod
    def close(self) -> None:
        """End the iterator. Any thread may call this, repeatedly."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Cluster(Protocol):
    """The operations that tf-dist needs from a cluster, real or embedded. Selectors are strings in kubectl's syntax."""

    def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        limit: int = 0,
        continue_: str = "",
    ) -> ObjectList:
        """All objects (or one page of at most ``limit``) of a namespace, or of all namespaces (None)."""

    def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        """One object; NotFound."""

    def create(self, resource: Resource, namespace: str | None, body: Object) -> Object:
        """The created object; AlreadyExists, Rejected, Forbidden."""

    def replace(
        self, resource: Resource, namespace: str | None, name: str, body: Object, *, subresource: str = ""
    ) -> Object:
        """The whole object (or its subresource, as ``status``); Conflict if its resourceVersion is not the newest."""

    def patch(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        body: Any,
        *,
        kind: PatchType = PatchType.MERGE,
        subresource: str = "",
    ) -> Object:
        """The patched object; NotFound, Conflict (when the patch carries a resourceVersion), Rejected."""

    def delete(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        *,
        uid: str = "",
        version: str = "",
        grace_period: int | None = None,
        propagation: str = "Background",
    ) -> None:
        """Request deletion. ``uid`` and ``version`` are preconditions: Conflict if another object now has the name, or
        the object has changed. NotFound.
        """

    def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        since: str = "",
        timeout: float = 290,
    ) -> Stream[WatchEvent]:
        """Changes after version ``since`` ("": first the existing objects, then changes), including bookmarks.

        Ends without an error after ``timeout`` seconds; Gone when ``since`` is too old.
        """

    def logs(self, namespace: str, pod: str, options: LogOptions = ALL_LINES) -> Stream[bytes]:
        """The lines of a container's log with their line ends. Lines that are available together may be one item."""

    def addresses(self, owner: Object, endpoints: Sequence[str]) -> Mapping[str, str]:
        """The real addresses of these DNS endpoints (``host:port``) of the job ``owner``, if they differ.

        Empty where cluster DNS works. Without DNS (the embedded cluster's shared network), each endpoint gets 127.0.0.1
        and its own port, which stays the same until ``owner`` is deleted.
        """


class PodReader(Protocol):
    """The part of a ``Cluster`` that is needed to read logs."""

    def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        """See ``Cluster``."""

    def logs(self, namespace: str, pod: str, options: LogOptions = ALL_LINES) -> Stream[bytes]:
        """See ``Cluster``."""

"""Connections to clusters (named, local, or from the kubeconfig), retries, and CustomResourceDefinitions."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tf_dist.cluster.api import Cluster, Object, Resource
from tf_dist.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    InvalidJob,
    NotFound,
    Problem,
    Rejected,
    Throttled,
    Unavailable,
)

if TYPE_CHECKING:
    from tf_dist.cluster.client.client_config import KubeContext


PART_OF: Final = "app.kubernetes.io/part-of"
TF_DIST: Final = "tf-dist"
_POD: Final = "the cluster of this pod"
VOLCANO_JOBS_DEFINITION: Final = "jobs.batch.volcano.sh"
_DEFINITIONS: Final = Resource(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)


def get_definition(cluster: Cluster, name: str) -> Object | None:
    """The CustomResourceDefinition with this name; None if it does not exist."""
    try:
        return cluster.get(_DEFINITIONS, None, name)
    except NotFound:
        return None


def is_tf_dist_definition(definition: Object) -> bool:
    """Whether the label of a definition allows tf-dist to replace it."""
    return (definition["metadata"].get("labels") or {}).get(PART_OF) == TF_DIST


def refuse_beside_volcano(cluster: Cluster, name: str) -> None:
    """Rejected if Volcano's controller also reconciles the Job. Skipped without permission to read definitions."""
    try:
        there = get_definition(cluster, VOLCANO_JOBS_DEFINITION)
    except Forbidden:
        return
    if there is not None and not is_tf_dist_definition(there):
        raise Rejected(
            f"Job {name} is for Volcano's controller: the cluster has its definition {VOLCANO_JOBS_DEFINITION}",
            hint="hand it over: tf-dist submit; or make it a TFJob: tf-dist convert FILE --to kubeflow.org/v1",
        )


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection to a cluster."""

    cluster: Cluster
    """The API of the cluster."""
    namespace: str
    """The default namespace of objects; never empty."""
    name: str
    """Its name in messages."""
    place: KubeContext | None = None
    """The configuration for more clients; None for the local cluster of the daemon, which has a controller."""

    @property
    def here(self) -> bool:
        """Whether the nodes are probably this machine, so that pods can use its folders."""
        return self.place is None or urlsplit(self.place.server).hostname in ("127.0.0.1", "::1", "localhost")

    def hurry(self) -> None:
        """Stop waiting for a cluster that does not answer, because this process must end soon."""
        from tf_dist.cluster.client.rest import RestCluster

        if isinstance(self.cluster, RestCluster):
            self.cluster.hurry()

    def close(self) -> None:
        """Close the connections of the client."""
        from tf_dist.cluster.client.rest import RestCluster

        if isinstance(self.cluster, RestCluster):
            self.cluster.close()


def connect(kubeconfig: str = "", context: str = "", *, local: bool = False, in_cluster: bool = False) -> Connection:
    """Connect to the named cluster, else to the local cluster if it runs, else to the pod's or the kubeconfig's.

    ``in_cluster``: the cluster of the pod of this process. Unavailable, with all ways to connect, if no cluster is
    configured. ClusterError if the named cluster cannot be used.
    """
    from tf_dist.cluster.client import client_config
    from tf_dist.local import daemon_control as lasting

    named = {"--local": local, "--kubeconfig": kubeconfig, "--context": context, "in_cluster": in_cluster}
    first, *others = [option for option, said in named.items() if said] or [""]
    if others and (local or in_cluster):
        raise InvalidJob([Problem(first, f"it names one cluster, and {others[0]} another", "leave one of them out")])
    if local:
        return Connection(lasting.connect(), "default", "the local cluster")
    if in_cluster:
        pod = client_config.in_cluster_config()
        if pod is None:
            raise Unavailable("this process does not run in a pod", hint="leave in_cluster out")
        return Connection(pod.cluster(), pod.namespace, _POD, pod)
    if not kubeconfig and not context and (endpoint := lasting.daemon_status()) is not None:
        return Connection(lasting.daemon_client(endpoint), "default", "the local cluster")
    place = client_config.load_config(kubeconfig or None, context or None)
    name = _POD if place.name == client_config.IN_CLUSTER else f"context {place.name}"
    return Connection(place.cluster(), place.namespace, name, place)


TRANSIENT_ERRORS: Final = (Unavailable, Throttled)
"""Errors that may pass without a change."""
_FIRST_PAUSE: Final = 0.2
_MAX_PAUSE: Final = 5.0


def backoff_seconds(failures: int) -> float:
    """The pause after this many failures in a row, for interactive programs."""
    from tf_dist.cluster.client.informer import jittered_backoff

    return jittered_backoff(failures, first=_FIRST_PAUSE, longest=_MAX_PAUSE)


class Backoff:
    """Pauses after failures in a row, doubling to a few seconds. ``limit``: seconds of failures until it gives up."""

    def __init__(self, limit: float = 120.0, *, sleep: Callable[[float], object] = time.sleep) -> None:
        self._limit = limit
        self._sleep = sleep
        self._since: float | None = None
        self._failures = 0

    def failed(self, error: ClusterError) -> None:
        """Pause; raise ``error`` if the failures have lasted too long."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since > self._limit:
            raise error
        requested = error.after if isinstance(error, Throttled) and error.after else 0.0
        pause = backoff_seconds(self._failures)
        self._failures = min(self._failures + 1, 16)
        self._sleep(max(pause, min(requested, self._limit)))

    def answered(self) -> None:
        """The cluster answered, and may fail again: reset the limit, not the pause."""
        self._since = None

    def succeeded(self) -> None:
        """The request succeeded: reset the limit and the pause."""
        self._since, self._failures = None, 0


def until_taken(request: Callable[[], object], backoff: Backoff) -> None:
    """Retry a request until the cluster accepts it. ClusterError after too long.

    NotFound and Conflict count as success: the object is gone, or another object has its name.
    """
    while True:
        try:
            with suppress(NotFound, Conflict):
                request()
            return
        except TRANSIENT_ERRORS as error:
            backoff.failed(error)

"""Connection to a cluster: the named one, the local one or the kubeconfig's; pauses while it is away; its CRDs."""

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
    """The definition of that name; None where there is none."""
    try:
        return cluster.get(_DEFINITIONS, None, name)
    except NotFound:
        return None


def is_tf_dist_definition(definition: Object) -> bool:
    """Whether tf-dist may replace it: its label says so."""
    return (definition["metadata"].get("labels") or {}).get(PART_OF) == TF_DIST


def refuse_beside_volcano(cluster: Cluster, name: str) -> None:
    """Rejected when a Job would be reconciled beside Volcano's controller. Who may not look is not stopped."""
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
    """A cluster to work on. ``namespace``: where things are that say nothing else; never empty.

    ``place``: what further clients are made of; None for the lasting local cluster, which has a controller.
    """

    cluster: Cluster
    namespace: str
    name: str
    place: KubeContext | None = None

    @property
    def here(self) -> bool:
        """Whether its nodes are this machine, as far as one can tell: folders of this machine mean something there."""
        return self.place is None or urlsplit(self.place.server).hostname in ("127.0.0.1", "::1", "localhost")

    def hurry(self) -> None:
        """The process is asked to stop: a cluster that does not answer must not hold that up."""
        from tf_dist.cluster.client.rest import RestCluster

        if isinstance(self.cluster, RestCluster):
            self.cluster.hurry()

    def close(self) -> None:
        """Close what the client keeps open."""
        from tf_dist.cluster.client.rest import RestCluster

        if isinstance(self.cluster, RestCluster):
            self.cluster.close()


def connect(kubeconfig: str = "", context: str = "", *, local: bool = False, in_cluster: bool = False) -> Connection:
    """The cluster that these name, else the lasting local one if it is up, else that of the pod or kubeconfig at hand.

    ``in_cluster``: that of the pod that this process runs in. Unavailable, with every way to one, when there is none;
    ClusterError when the named one cannot be had.
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
            raise Unavailable("this process is in no pod of a cluster", hint="leave in_cluster out")
        return Connection(pod.cluster(), pod.namespace, _POD, pod)
    if not kubeconfig and not context and (endpoint := lasting.daemon_status()) is not None:
        return Connection(lasting.daemon_client(endpoint), "default", "the local cluster")
    place = client_config.load_config(kubeconfig or None, context or None)
    name = _POD if place.name == client_config.IN_CLUSTER else f"context {place.name}"
    return Connection(place.cluster(), place.namespace, name, place)


TRANSIENT_ERRORS: Final = (Unavailable, Throttled)
"""Errors that pass by themselves."""
_FIRST_PAUSE: Final = 0.2
_MAX_PAUSE: Final = 5.0


def backoff_seconds(failures: int) -> float:
    """Seconds that people wait after so many failures in a row."""
    from tf_dist.cluster.client.informer import jittered_backoff

    return jittered_backoff(failures, first=_FIRST_PAUSE, longest=_MAX_PAUSE)


class Backoff:
    """Pauses after failures in a row, doubling to a few seconds; ``limit``: seconds of them that are borne in all."""

    def __init__(self, limit: float = 120.0, *, sleep: Callable[[float], object] = time.sleep) -> None:
        self._limit = limit
        self._sleep = sleep
        self._since: float | None = None
        self._failures = 0

    def failed(self, error: ClusterError) -> None:
        """Return after a pause; raise ``error`` when it has gone on for too long."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since > self._limit:
            raise error
        requested = error.after if isinstance(error, Throttled) and error.after else 0.0
        pause = backoff_seconds(self._failures)
        self._failures = min(self._failures + 1, 16)
        self._sleep(max(pause, min(requested, self._limit)))

    def answered(self) -> None:
        """It is there, whether or not it will stay: the time counts anew, the next pause is no shorter."""
        self._since = None

    def succeeded(self) -> None:
        """It is there, and does what was asked."""
        self._since, self._failures = None, 0


def until_taken(request: Callable[[], object], backoff: Backoff) -> None:
    """Make a request until the cluster has taken it; ClusterError when it does not for too long.

    An object that is gone already, and perhaps has another in its place, is left alone.
    """
    while True:
        try:
            with suppress(NotFound, Conflict):
                request()
            return
        except TRANSIENT_ERRORS as error:
            backoff.failed(error)

"""The one place where fronts get their cluster: the one that is named, else the local one, else the kubeconfig's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tf_dist.errors import InvalidJob, Problem

if TYPE_CHECKING:
    from tf_dist.cluster.api import Cluster
    from tf_dist.cluster.kube import KubeContext


@dataclass(frozen=True, slots=True)
class Connection:
    """A cluster to work on. ``namespace``: where things are that say nothing else; never empty.

    ``place``: what further clients are made of; None for the lasting local cluster, which drives its jobs itself.
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
        from tf_dist.cluster.rest import RestCluster

        if isinstance(self.cluster, RestCluster):
            self.cluster.hurry()

    def close(self) -> None:
        """Close what the client keeps open."""
        from tf_dist.cluster.rest import RestCluster

        if isinstance(self.cluster, RestCluster):
            self.cluster.close()


def connect(kubeconfig: str = "", context: str = "", *, local: bool = False) -> Connection:
    """The cluster that these name, else the lasting local one if it is up, else that of the pod or kubeconfig at hand.

    Unavailable, with every way to one, when there is none; ClusterError when the named one cannot be had.
    """
    from tf_dist.cluster import kube
    from tf_dist.driver import local as lasting

    if local and (kubeconfig or context):
        other = "--kubeconfig" if kubeconfig else "--context"
        raise InvalidJob([Problem("--local", f"it names one cluster, and {other} another", "leave one of them out")])
    if local:
        return Connection(lasting.connect(), "default", "the local cluster")
    if not kubeconfig and not context and (endpoint := lasting.status()) is not None:
        return Connection(lasting.client(endpoint), "default", "the local cluster")
    place = kube.load(kubeconfig or None, context or None)
    name = "the cluster of this pod" if place.name == kube.IN_CLUSTER else f"context {place.name}"
    return Connection(place.cluster(), place.namespace, name, place)

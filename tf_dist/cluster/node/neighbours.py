"""Addresses of the node's pods, and the names by which they find one another (isolated mode only)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tf_dist.cluster.api import Object
from tf_dist.cluster.node.client import Supervisor
from tf_dist.cluster.node.hosts import entries, hosts_file
from tf_dist.cluster.node.lifecycle import OVER
from tf_dist.cluster.node.network import Addresses
from tf_dist.cluster.node.workload import Workload


class Neighbours:
    """Gives pods their addresses and keeps every live pod's /etc/hosts current."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._addresses = Addresses()
        self._shown: object = None

    def address(self, pod: Object) -> str:
        """The address of a pod: what it is known to have, else what follows from its name."""
        metadata = pod["metadata"]
        record = self._supervisor.record(metadata["uid"]) or {}
        known = (pod.get("status") or {}).get("podIP") or record.get("ip")
        if known:
            return self._addresses.keep(metadata["namespace"], metadata["name"], known)
        return self._addresses.of(metadata["namespace"], metadata["name"])

    def show(self, pods: Sequence[Object], services: Sequence[Object], workload: Callable[[Object], Workload]) -> None:
        """Tell every live pod the names it can reach, when they have changed."""
        live = [pod for pod in pods if (pod.get("status") or {}).get("phase") not in OVER]
        state = ({pod["metadata"]["uid"] for pod in live}, [item["metadata"]["resourceVersion"] for item in services])
        if state == self._shown:
            return
        found = entries(live, services, {pod["metadata"]["uid"]: workload(pod).ip for pod in live})
        for pod in live:
            target = workload(pod)
            target.show_hosts(hosts_file(pod, target.ip, found), self._supervisor)
        self._shown = state

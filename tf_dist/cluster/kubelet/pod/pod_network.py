"""Pod network of an isolated node: pod IPs, and service discovery by /etc/hosts.

The name of a replica exists before its pod does: programs resolve their peers when they start, and a peer may not have
been created by then. The address of a replica follows from its labels, so it is known in advance. For a job with one
service for all replicas, the replicas are read from the environments of its pods, which name their peers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from tf_dist.cluster.api import Object, has_ended
from tf_dist.cluster.kubelet.node.runtime_client import RuntimeClient
from tf_dist.cluster.kubelet.pod.pod_state import PodState
from tf_dist.cluster.kubelet.pod.podspec import pod_hostname
from tf_dist.cluster.kubelet.pod.security_context import is_dns_label
from tf_dist.core.model import names
from tf_dist.core.model.fieldpath import mapping

_FIRST, _LAST = 2 << 8, 255 << 8  # 10.88.2.0 to 10.88.254.255: the rest is for the bridge and rehearsals


class IpAllocator:
    """Allocates addresses of 10.88.0.0/16, unique among the known names."""

    def __init__(self) -> None:
        self._by_name: dict[str, str] = {}

    def of(self, namespace: str, name: str) -> str:
        """The address of a pod, by its name or its replica's name."""
        key = f"{namespace}/{name}"
        known = self._by_name.get(key)
        return known or self.keep(namespace, name, self._free(key))

    def keep(self, namespace: str, name: str, address: str) -> str:
        """Record an address that a pod already has."""
        self._by_name[f"{namespace}/{name}"] = address
        return address

    def _free(self, key: str) -> str:
        start = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
        span = _LAST - _FIRST
        if len(self._by_name) >= span // 2:  # most names are of deleted pods
            self._by_name.clear()
        taken = set(self._by_name.values())
        for step in range(span):
            number = _FIRST + (start + step) % span
            address = f"10.88.{number >> 8}.{number & 255}"
            if number & 255 not in (0, 255) and address not in taken:
                return address
        raise AssertionError("half of the addresses are free")


_HEAD = (
    "127.0.0.1\tlocalhost",
    "::1\tlocalhost ip6-localhost ip6-loopback",
)
HostsEntry = tuple[str, str, str]  # namespace, address, short name


def hosts_entries(
    pods: Iterable[Object],
    services: Iterable[Object],
    addresses: Mapping[str, str],
    reserved: Callable[[Object], Mapping[str, str]] = lambda service: {},
) -> tuple[HostsEntry, ...]:
    """Every (namespace, address, name below the namespace); ``addresses`` by pod uid.

    ``reserved``: the addresses of a service's replica names, whether or not their pods exist.
    """
    known = [
        (pod, addresses[pod["metadata"]["uid"]])
        for pod in pods
        if pod["metadata"]["uid"] in addresses and not has_ended(pod)
    ]
    found: list[HostsEntry] = []
    for service in services:
        entries, namespace = _service_entries(service, known), service["metadata"]["namespace"]
        there = {name for _, _, name in entries}
        found += entries
        found += [(namespace, address, name) for name, address in reserved(service).items() if name not in there]
    return tuple(dict.fromkeys(found))


def _service_entries(service: Object, pods: Iterable[tuple[Object, str]]) -> list[HostsEntry]:
    namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
    selector = service["spec"].get("selector") or {}
    found: list[HostsEntry] = []
    for pod, address in pods:
        metadata, spec = pod["metadata"], pod["spec"]
        labels = metadata.get("labels") or {}
        if not selector or metadata["namespace"] != namespace or not selector.items() <= labels.items():
            continue
        found.append((namespace, address, name))
        if spec.get("subdomain") == name and is_dns_label(spec.get("hostname")):
            found.append((namespace, address, f"{spec['hostname']}.{name}"))
    return found


# The keys that identify a replica among all jobs, in a pod's labels and in its service's selector.
_REPLICA = (names.JOB_UID, names.REPLICA_TYPE, names.REPLICA_INDEX)


def _replica(labels: Mapping[str, str]) -> str:
    """The replica that these labels name; "" for none. Its pods, which never overlap, share an address."""
    return "/".join(str(labels[key]) for key in _REPLICA) if all(key in labels for key in _REPLICA) else ""


def hosts_file(pod: Object, address: str, found: Iterable[HostsEntry]) -> str:
    """The file of one pod. Short names are of its own namespace; names with a namespace work in all namespaces."""
    own = pod["metadata"]["namespace"]
    lines = [*_HEAD, f"{address}\t{' '.join(_own_names(pod))}"]
    for namespace, target, name in found:
        full = [f"{name}.{namespace}{suffix}" for suffix in (".svc.cluster.local", ".svc", "")]
        lines.append(f"{target}\t{' '.join(full + [name] * (namespace == own))}")
    return "\n".join(lines) + "\n"


def _own_names(pod: Object) -> list[str]:
    name, subdomain = pod_hostname(pod), pod["spec"].get("subdomain")
    if not subdomain:
        return [name]
    return [f"{name}.{subdomain}.{pod['metadata']['namespace']}.svc.cluster.local", name]


class PodNetwork:
    """Assigns addresses to pods, and keeps every live pod's /etc/hosts current."""

    def __init__(self, supervisor: RuntimeClient) -> None:
        self._supervisor = supervisor
        self._addresses = IpAllocator()
        self._expected: frozenset[str] = frozenset()
        self._shown: object = None

    def address(self, pod: Object) -> str:
        """The recorded address of a pod, or else the address that is derived from its replica or name."""
        metadata = pod["metadata"]
        name = _replica(mapping(metadata.get("labels"))) or metadata["name"]
        record = self._supervisor.record(metadata["uid"]) or {}
        known = (pod.get("status") or {}).get("podIP") or record.get("ip")
        if known:
            return self._addresses.keep(metadata["namespace"], name, known)
        return self._addresses.of(metadata["namespace"], name)

    def _reserved(self, service: Object) -> dict[str, str]:
        """The names of replicas behind a service, and their addresses."""
        namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
        selector = mapping(service["spec"].get("selector"))
        if replica := _replica(selector):
            return {name: self._addresses.of(namespace, replica)}
        if selector.keys() != {names.JOB_UID}:
            return {}
        hosts = re.compile(rf"{re.escape(name)}-(.+)-(\d+)\.{re.escape(name)}")
        replicas = {host: found for host in sorted(self._expected) if (found := hosts.fullmatch(host))}
        uid = selector[names.JOB_UID]
        return {host: self._addresses.of(namespace, f"{uid}/{found[1]}/{found[2]}") for host, found in replicas.items()}

    def show(self, pods: Sequence[Object], services: Sequence[Object], workload: Callable[[Object], PodState]) -> None:
        """Update /etc/hosts of every live pod when the reachable names have changed."""
        live = [pod for pod in pods if not has_ended(pod)]
        self._expected = frozenset().union(*(workload(pod).peers for pod in live))
        state = (
            {pod["metadata"]["uid"] for pod in live},
            [item["metadata"]["resourceVersion"] for item in services],
            self._expected,
        )
        if state == self._shown:
            return
        addresses = {pod["metadata"]["uid"]: workload(pod).ip for pod in live}
        found = hosts_entries(live, services, addresses, self._reserved)
        for pod in live:
            target = workload(pod)
            target.update_hosts(hosts_file(pod, target.ip, found), self._supervisor)
        self._shown = state

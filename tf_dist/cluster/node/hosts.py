"""Service discovery by /etc/hosts: the names cluster DNS would answer, for the pods of this node. Pure.

A name is there as soon as its pod is known (addresses are fixed by then): TensorFlow's gRPC resolves its peers when it
starts, before they run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tf_dist.cluster.api import Object
from tf_dist.cluster.node.paths import is_label
from tf_dist.cluster.node.podspec import hostname

_HEAD = (
    "127.0.0.1\tlocalhost",
    "::1\tlocalhost ip6-localhost ip6-loopback",
)
_OVER = ("Succeeded", "Failed")
Entry = tuple[str, str, str]  # namespace, address, short name


def entries(pods: Iterable[Object], services: Iterable[Object], addresses: Mapping[str, str]) -> tuple[Entry, ...]:
    """Every (namespace, address, name below the namespace); ``addresses`` by pod uid."""
    known = [
        (pod, addresses[pod["metadata"]["uid"]])
        for pod in pods
        if pod["metadata"]["uid"] in addresses and (pod.get("status") or {}).get("phase") not in _OVER
    ]
    found: list[Entry] = []
    for service in services:
        found += _service_entries(service, known)
    return tuple(dict.fromkeys(found))


def _service_entries(service: Object, pods: Iterable[tuple[Object, str]]) -> list[Entry]:
    namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
    selector = service["spec"].get("selector") or {}
    found: list[Entry] = []
    for pod, address in pods:
        metadata, spec = pod["metadata"], pod["spec"]
        labels = metadata.get("labels") or {}
        if not selector or metadata["namespace"] != namespace or not selector.items() <= labels.items():
            continue
        found.append((namespace, address, name))
        if spec.get("subdomain") == name and is_label(spec.get("hostname")):
            found.append((namespace, address, f"{spec['hostname']}.{name}"))
    return found


def hosts_file(pod: Object, address: str, found: Iterable[Entry]) -> str:
    """The file of one pod. Short names mean its own namespace; with its namespace every name is known everywhere."""
    own = pod["metadata"]["namespace"]
    lines = [*_HEAD, f"{address}\t{' '.join(_own_names(pod))}"]
    for namespace, target, name in found:
        full = [f"{name}.{namespace}{suffix}" for suffix in (".svc.cluster.local", ".svc", "")]
        lines.append(f"{target}\t{' '.join(full + [name] * (namespace == own))}")
    return "\n".join(lines) + "\n"


def _own_names(pod: Object) -> list[str]:
    name, subdomain = hostname(pod), pod["spec"].get("subdomain")
    if not subdomain:
        return [name]
    return [f"{name}.{subdomain}.{pod['metadata']['namespace']}.svc.cluster.local", name]

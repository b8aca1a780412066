"""Loopback ports for a job's endpoints where there is no cluster DNS, allocated in a ConfigMap the job owns.

The ConfigMap survives a restart, and is garbage-collected with the job.
"""

from __future__ import annotations

import json
import socket
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

from tf_dist.cluster.api import CONFIG_MAPS, Cluster, Object
from tf_dist.errors import AlreadyExists, ClusterError, Conflict, NotFound

_LABEL = "tf-dist.dev/addresses"
"""Label of a ConfigMap: the ports of pods that share the machine's network, on an embedded cluster."""
# An endpoint holds a colon, which no key of a ConfigMap may: all of them are one JSON text.
_KEY = "addresses.json"
_PORTS = range(20_000, 32_000)


def is_port_free(port: int) -> bool:
    """Whether a server could bind the port on all interfaces now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


class PortAllocator:
    """Gives each endpoint of a job 127.0.0.1 and a port that no other job holds, the same one on every call."""

    def __init__(self, cluster: Cluster, *, ports: range = _PORTS, free: Callable[[int], bool] = is_port_free) -> None:
        self._cluster = cluster
        self._ports = ports
        self._free = free
        self._lock = threading.Lock()

    def addresses(self, owner: Object, endpoints: Sequence[str]) -> Mapping[str, str]:
        """The address of each endpoint of the job ``owner``; ClusterError when no port is left."""
        with self._lock:
            while True:
                page = self._page(owner)
                given = _allocated(page) if page else {}
                missing = [endpoint for endpoint in dict.fromkeys(endpoints) if endpoint not in given]
                if missing:
                    given = {**given, **dict(zip(missing, self._new(owner, len(missing)), strict=True))}
                if not missing or self._kept(owner, page, given):
                    return {endpoint: f"127.0.0.1:{given[endpoint]}" for endpoint in endpoints}

    def _page(self, owner: Object) -> Object | None:
        try:
            return self._cluster.get(CONFIG_MAPS, owner["metadata"]["namespace"], _name(owner))
        except NotFound:
            return None

    def _kept(self, owner: Object, page: Object | None, given: Mapping[str, int]) -> bool:
        """Write the page; False when another process wrote it first."""
        namespace = owner["metadata"]["namespace"]
        data = {_KEY: json.dumps(given, sort_keys=True)}
        try:
            if page is None:
                self._cluster.create(CONFIG_MAPS, namespace, _new_allocation(owner, data))
            else:
                self._cluster.replace(CONFIG_MAPS, namespace, _name(owner), {**page, "data": data})
        except (AlreadyExists, Conflict, NotFound):
            return False
        return True

    def _new(self, owner: Object, count: int) -> list[int]:
        pages = self._cluster.list(CONFIG_MAPS, labels=_LABEL).items
        taken = set(chain.from_iterable(_allocated(page).values() for page in pages))
        ports = [port for port, _ in zip(self._candidates(owner, taken), range(count), strict=False)]
        if len(ports) < count:
            raise ClusterError(
                f"no free port left between {self._ports.start} and {self._ports.stop - 1}",
                hint="delete finished jobs, or stop what listens there",
            )
        return ports

    def _candidates(self, owner: Object, taken: set[int]) -> Iterator[int]:
        # Each job begins elsewhere, so that two clusters on one machine seldom try the same port at once.
        start = zlib.crc32(owner["metadata"]["uid"].encode()) % len(self._ports)
        for offset in range(len(self._ports)):
            port = self._ports[(start + offset) % len(self._ports)]
            if port not in taken and self._free(port):
                yield port


def _name(owner: Object) -> str:
    return f"tf-dist-addresses-{owner['metadata']['uid'][:8]}"


def _allocated(page: Object) -> dict[str, int]:
    given: dict[str, int] = json.loads((page.get("data") or {}).get(_KEY, "{}"))
    return given


def _new_allocation(owner: Object, data: Object) -> Object:
    metadata = owner["metadata"]
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": _name(owner), "labels": {_LABEL: "true"}, "ownerReferences": [reference]},
        "data": data,
    }

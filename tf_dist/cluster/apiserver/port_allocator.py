"""Loopback ports for a job's endpoints without cluster DNS, allocated in a ConfigMap that the job owns.

The ConfigMap survives a restart, and is garbage-collected with the job.
"""

from __future__ import annotations

import json
import socket
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice

from tf_dist.cluster.api import CONFIG_MAPS, Cluster, Object
from tf_dist.errors import AlreadyExists, ClusterError, Conflict, NotFound

_LABEL = "tf-dist.dev/addresses"
"""Label of a ConfigMap: the ports of pods that share the machine's network, on an embedded cluster."""
# Endpoints contain colons, which keys of a ConfigMap must not contain, so one JSON text has all endpoints.
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
    """Gives each endpoint of a job 127.0.0.1 and a port that no other job holds, the same port on every call."""

    def __init__(self, cluster: Cluster, *, ports: range = _PORTS, free: Callable[[int], bool] = is_port_free) -> None:
        self._cluster = cluster
        self._ports = ports
        self._free = free
        self._lock = threading.Lock()

    def addresses(self, owner: Object, endpoints: Sequence[str]) -> Mapping[str, str]:
        """The address of each endpoint of the job ``owner``; ClusterError when no port is left, or the job is gone."""
        namespace = owner["metadata"]["namespace"]
        with self._lock:
            while True:
                with suppress(AlreadyExists, Conflict):  # another process wrote the ConfigMap meanwhile
                    return self._allocated(owner, namespace, endpoints)

    def _allocated(self, owner: Object, namespace: str, endpoints: Sequence[str]) -> Mapping[str, str]:
        metadata = owner["metadata"]
        name = f"tf-dist-addresses-{metadata['uid'][:8]}"
        page: Object | None = None
        with suppress(NotFound):
            page = self._cluster.get(CONFIG_MAPS, namespace, name)
        given = _ports_of(page) if page else {}
        missing = [endpoint for endpoint in dict.fromkeys(endpoints) if endpoint not in given]
        if missing:
            given |= zip(missing, self._free_ports(metadata["uid"], len(missing)), strict=True)
            data = {_KEY: json.dumps(given, sort_keys=True)}
            if page is not None:
                self._cluster.replace(CONFIG_MAPS, namespace, name, {**page, "data": data})
            else:
                reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"]}
                reference |= {"name": metadata["name"], "uid": metadata["uid"]}
                own = {"name": name, "labels": {_LABEL: "true"}, "ownerReferences": [reference]}
                self._cluster.create(CONFIG_MAPS, namespace, {"metadata": own, "data": data})
        return {endpoint: f"127.0.0.1:{given[endpoint]}" for endpoint in endpoints}

    def _free_ports(self, uid: str, count: int) -> list[int]:
        pages = self._cluster.list(CONFIG_MAPS, labels=_LABEL).items
        taken = {port for page in pages for port in _ports_of(page).values()}
        # Each job starts at a different port, so that two clusters on one machine rarely try the same port at once.
        start = zlib.crc32(uid.encode()) % len(self._ports)
        candidates = chain(self._ports[start:], self._ports[:start])
        found = list(islice((port for port in candidates if port not in taken and self._free(port)), count))
        if len(found) < count:
            raise ClusterError(
                f"no free port left between {self._ports.start} and {self._ports.stop - 1}",
                hint="delete finished jobs, or stop the programs that listen on these ports",
            )
        return found


def _ports_of(page: Object) -> dict[str, int]:
    """The ports in a ConfigMap of tf-dist; none if another program wrote a ConfigMap with its label."""
    try:
        given = json.loads((page.get("data") or {}).get(_KEY, "{}"))
    except ValueError:
        return {}
    return {key: port for key, port in given.items() if type(port) is int} if isinstance(given, dict) else {}

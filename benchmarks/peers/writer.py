"""``python -m benchmarks.peers.writer KUBECONFIG``: admits every job at once, while the queue has a quota.

It follows and writes what the controller has to, with the same client, and decides nothing: what remains is the cost of
the API server and of the client.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from benchmarks.control_plane import SPACE, placed
from tf_dist.cluster.api import QUEUES, TFJOBS, Cluster, Object
from tf_dist.cluster.client.client_config import load_config
from tf_dist.cluster.client.informer import Informer
from tf_dist.core.dialects import read
from tf_dist.core.model.context import Observed, WriteStatus
from tf_dist.core.reconciler.reconcile import reconcile
from tf_dist.errors import ClusterError

_THREADS = 16


class Writer:
    """Jobs that are not admitted wait in a queue, from which threads take them while it is open."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._open = threading.Event()
        self._jobs: queue.Queue[tuple[int, Object]] = queue.Queue()
        self._seen: set[str] = set()

    def job_changed(self, _: Object | None, new: Object | None) -> None:
        """Take a new job."""
        if new is not None and new["metadata"]["uid"] not in self._seen:
            self._seen.add(new["metadata"]["uid"])
            self._jobs.put((len(self._seen), new))

    def queue_changed(self, _: Object | None, new: Object | None) -> None:
        """Open while there is a quota."""
        quotas: Any = (new or {}).get("spec", {}).get("quotas", {})
        if int(quotas.get("cpu", {}).get("nominal", 0)):
            self._open.set()
        else:
            self._open.clear()

    def run(self) -> None:
        """A thread: admit one job after the other."""
        while True:
            number, stored = self._jobs.get()
            self._open.wait()
            with suppress(ClusterError):  # deleted meanwhile
                self._admit(number, stored)

    def _admit(self, number: int, stored: Object) -> None:
        workers = int(stored["spec"]["tfReplicaSpecs"]["Worker"]["replicas"])
        observed = Observed(now=time.time(), verdict=placed(number, workers=workers))
        for action in reconcile(read(stored), observed).actions:
            if isinstance(action, WriteStatus):
                body = {**stored, "status": action.status}
                self._cluster.replace(TFJOBS, SPACE, stored["metadata"]["name"], body, subresource="status")


def main(kubeconfig: str) -> None:
    """Until a signal ends it."""
    with load_config(kubeconfig).cluster(connections=32) as cluster, ThreadPoolExecutor(_THREADS) as pool:
        writer = Writer(cluster)
        for kind, changed in ((QUEUES, writer.queue_changed), (TFJOBS, writer.job_changed)):
            Informer(cluster, kind, changed=changed).start()
        for _ in range(_THREADS):
            pool.submit(writer.run)
        print("started", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1])

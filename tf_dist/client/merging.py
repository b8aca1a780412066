"""Several streams as one: watches of several kinds, logs of several replicas, each read by a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator

from tf_dist.client.patience import PASSING, Patience
from tf_dist.cluster.api import Cluster, Resource, WatchEvent
from tf_dist.errors import ClusterError, Forbidden, Gone, NotFound

Change = tuple[Resource, WatchEvent]


def watching(cluster: Cluster, resource: Resource, namespace: str | None, labels: str = "") -> Iterator[WatchEvent]:
    """Every change of a kind, for ever: begins with what is there, and again when the server lost the thread."""
    since, patience = "", Patience()
    while True:
        try:
            with cluster.watch(resource, namespace, labels=labels, since=since) as stream:
                patience.answered()
                fruitless = True
                for event in stream:
                    fruitless = False
                    patience.succeeded()
                    since = str(event.object["metadata"].get("resourceVersion") or since)
                    if event.type != "BOOKMARK":
                        yield event
            if fruitless:
                patience.unfruitful()
        except Gone:
            since = ""
            patience.unfruitful()
        except PASSING as error:
            patience.failed(error)


def merged_watch(cluster: Cluster, kinds: Iterable[Resource], namespace: str | None) -> Iterator[Change]:
    """The changes of several kinds as they come; a kind that is not there, or not ours to see, has none."""
    changes: queue.SimpleQueue[Change | ClusterError] = queue.SimpleQueue()

    def read(resource: Resource) -> None:
        try:
            for event in watching(cluster, resource, namespace):
                changes.put((resource, event))
        except (NotFound, Forbidden):
            return
        except ClusterError as error:
            changes.put(error)

    for resource in kinds:
        threading.Thread(target=read, args=(resource,), daemon=True).start()
    while True:
        change = changes.get()
        if isinstance(change, ClusterError):
            raise change
        yield change

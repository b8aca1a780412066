"""Everything that happens to one job, in one mailbox: changes of the job and its pods, log lines, signals."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self

from tf_dist.client.following import Ended, Instance, LogLine
from tf_dist.client.jobs import StoredJob
from tf_dist.client.patience import PASSING, backoff
from tf_dist.cluster.api import PODS, Cluster, Object, Resource
from tf_dist.cluster.cache import version_of
from tf_dist.cluster.reflector import Reflector
from tf_dist.errors import ClusterError, NotFound

_MOST_LINES: Final = 10_000
_BATCH: Final = 2_000
_BORNE: Final = 120.0  # seconds without an answer


class Listed(NamedTuple):
    """All objects of a kind, as of now."""

    resource: Resource
    items: list[Object]


class Changed(NamedTuple):
    """One object changed (DELETED: is gone)."""

    resource: Resource
    type: str
    object: Object


class Signalled(NamedTuple):
    """A signal came to this process."""

    number: int


Item = LogLine | Ended | Listed | Changed | Signalled | ClusterError


class Watcher:
    """Tells of every change of some objects, in a thread, until closed: an informer that puts them into a mailbox.

    A cluster that is away for a moment is borne with; any other error ends up in the mailbox.
    """

    def __init__(
        self,
        cluster: Cluster,
        resource: Resource,
        namespace: str,
        put: Callable[[Any], None],
        *,
        labels: str = "",
        fields: str = "",
    ) -> None:
        self._resource = resource
        self._put = put
        self._reflector = Reflector(
            cluster,
            resource,
            changed=self._changed,
            namespace=namespace,
            labels=labels,
            fields=fields,
            restarted=self._restarted,
            relisted=self._relisted,
            pause=backoff,
        )
        self._reflector.start()

    def close(self) -> None:
        """End the watch and its thread."""
        self._reflector.end()

    def _relisted(self) -> None:
        self._put(Listed(self._resource, self._reflector.items()))

    def _changed(self, old: Object | None, new: Object | None) -> None:
        stored = new or old
        if stored is not None:
            type_ = "DELETED" if new is None else "ADDED" if old is None else "MODIFIED"
            self._put(Changed(self._resource, type_, stored))

    def _restarted(self, _: str, cause: str) -> None:
        problem = self._reflector.problem
        if self._reflector.absent:
            problem = NotFound(f"the cluster does not serve {self._resource.plural}")
        if problem is None:
            return
        silent = time.monotonic() - self._reflector.heard_at
        if not isinstance(problem, PASSING) or silent > _BORNE:
            self._reflector.end()
            self._put(problem)


class Mailbox:
    """A job and its pods as they are, kept up to date by ``take`` with what others ``put`` in.

    ``most_lines`` may wait to be taken, then their readers wait; ``batch``: the most that is taken at once.
    """

    def __init__(self, job: StoredJob, *, most_lines: int = _MOST_LINES, batch: int = _BATCH) -> None:
        self.uid, self.name = job.uid, job.name
        self.job: StoredJob | None = job
        self.pods: dict[str, Object] = {}
        self._resource = job.resource
        self._batch = batch
        self._items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._room = most_lines
        self._roomy = threading.Condition()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of whoever waits for room: nobody takes anything any more."""
        with self._roomy:
            self._closed = True
            self._roomy.notify_all()

    @property
    def over(self) -> bool:
        """Whether the job has ended, or is gone."""
        return self.job is None or self.job.status.finished

    def put(self, item: Item) -> None:
        """Add something; safe in a signal handler, except for lines, which wait for room."""
        if isinstance(item, LogLine):
            with self._roomy:
                self._roomy.wait_for(lambda: self._room > 0 or self._closed)
                self._room -= 1
        self._items.put(item)

    def take(self, timeout: float | None = None) -> list[Item]:
        """What has come, waiting for the first up to ``timeout`` seconds; the state is that after it."""
        found: list[Item] = []
        with suppress(queue.Empty):
            found.append(self._items.get(timeout=timeout))
            while len(found) < self._batch:
                found.append(self._items.get_nowait())
        for item in found:
            self.learn(item)
        return found

    def learn(self, item: Item) -> None:
        """Bring the state up to date with one item."""
        match item:
            case LogLine():
                with self._roomy:
                    self._room += 1
                    self._roomy.notify()
            case ClusterError():
                raise item
            case Listed() if item.resource is PODS:
                self.pods = {pod["metadata"]["uid"]: pod for pod in item.items}
            case Changed() if item.resource is PODS and item.type == "DELETED":
                self.pods.pop(item.object["metadata"]["uid"], None)
            case Changed() if item.resource is PODS:
                known = self.pods.setdefault(item.object["metadata"]["uid"], item.object)
                if version_of(item.object) >= version_of(known):  # a list may have told more than the watch yet
                    self.pods[item.object["metadata"]["uid"]] = item.object
            case Listed():
                mine = [stored for stored in item.items if stored["metadata"]["uid"] == self.uid]
                self.job = StoredJob(self._resource, mine[0]) if mine else None
            case Changed() if item.object["metadata"]["uid"] == self.uid:
                self.job = None if item.type == "DELETED" else StoredJob(self._resource, item.object)

    def ended(self, instance: Instance) -> bool:
        """Whether a container has ended, so that its log will end as well."""
        pod = self.pods.get(instance.pod_uid)
        if pod is None:
            return True
        status = pod.get("status") or {}
        every = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
        mine: Object = next((one for one in every if one["name"] == instance.container), {})
        if (mine.get("restartCount") or 0) != instance.number:
            return True
        return "running" not in (mine.get("state") or {})


class JobWatch(Mailbox):
    """A mailbox into which a job and its pods are watched, by two watches of its own."""

    def __init__(self, cluster: Cluster, job: StoredJob) -> None:
        super().__init__(job)
        fields = f"metadata.name={job.name}"
        self._watchers = [
            Watcher(cluster, job.resource, job.namespace, self.put, fields=fields),
            Watcher(cluster, PODS, job.namespace, self.put, labels=job.selector),
        ]

    def close(self) -> None:
        """End the watches."""
        for watcher in self._watchers:
            watcher.close()
        super().close()


def pods_in(items: list[Item]) -> Iterator[Object]:
    """Every pod that a batch tells something new of."""
    for item in items:
        if isinstance(item, Listed) and item.resource is PODS:
            yield from item.items
        elif isinstance(item, Changed) and item.resource is PODS:
            yield item.object

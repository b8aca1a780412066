"""Everything a driver decides on, kept up to date: jobs, what they own, pods and nodes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from tf_dist.cluster.api import (
    NODES,
    PODS,
    PRIORITY_CLASSES,
    QUEUES,
    SERVICES,
    TFJOBS,
    Cluster,
    Object,
    Resource,
)
from tf_dist.cluster.reflector import Reflector
from tf_dist.core import names
from tf_dist.core.gang.model import Snapshot
from tf_dist.core.gang.snapshot import Claim, Snapshots
from tf_dist.core.rules import rules_of
from tf_dist.core.schedulers.model import Scheduler
from tf_dist.core.schedulers.served import Served
from tf_dist.core.times import format_time
from tf_dist.driver import slim
from tf_dist.driver.departed import Departed
from tf_dist.driver.recorder import Recorder
from tf_dist.driver.refs import JOB_KINDS, OWNED_KINDS, JobRef
from tf_dist.driver.schedulers import Schedulers
from tf_dist.driver.settings import DriverSettings
from tf_dist.errors import Forbidden, NotFound

_OVER: Final = frozenset({"Succeeded", "Failed"})


class Caches:
    """Reflectors of every kind a driver needs.

    ``rung`` is called with a job whose surroundings changed, ``room`` when room may have become free. With ``start``
    they follow the cluster; without, each ``refresh`` lists everything.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: DriverSettings,
        *,
        rung: Callable[[JobRef], None],
        room: Callable[[], None],
        recorder: Recorder,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._rung = rung
        self._room = room
        self._recorder = recorder
        self._reflectors: dict[Resource, Reflector] = {}
        self._snapshots = Snapshots()
        self._seeing = threading.Lock()
        self.departed = Departed()
        self.schedulers = Schedulers(cluster, settings.namespace, rung=rung, recorder=recorder)
        self.followed = False
        # Without the right to see nodes and everybody's pods there is no telling what is free.
        self.knows_room = False
        # Who does not see every job cannot decide for all of them.
        self.sees_all = False

    # Their life

    def prepare(self) -> None:
        """Find out what may be seen, once; ClusterError when that cannot be found out."""
        if self._reflectors:
            return
        self.knows_room = self._may_list(NODES) and self._may_list(PODS)
        self.sees_all = self.knows_room and self._settings.arbitrates and self._is_served(TFJOBS)
        namespace = self._settings.namespace
        jobs_of = None if self.sees_all else namespace
        kinds = {kind: self._reflector(kind, self._job_changed(kind), slim.job, jobs_of) for kind in self._job_kinds()}
        for kind in self._owned_kinds():
            changed = self._owned_changed
            kinds[kind] = self._reflector(
                kind, changed, slim.owned, namespace, labels=names.JOB_UID, index=names.owner_key
            )
        whose = None if self.knows_room else namespace
        labels = "" if self.knows_room else names.JOB_UID
        kinds[PODS] = self._reflector(PODS, self._pod_changed, slim.pod, whose, labels=labels, index=names.owner_key)
        if self.knows_room:
            kinds[NODES] = self._reflector(NODES, self._node_changed, slim.node, None)
        for kind in (QUEUES, PRIORITY_CLASSES):
            if self._is_served(kind):
                kinds[kind] = self._reflector(kind, self._rule_changed, slim.rule, None)
        self._reflectors = kinds

    def _job_kinds(self) -> tuple[Resource, ...]:
        return JOB_KINDS if self._settings.volcano_jobs else (TFJOBS,)

    def _owned_kinds(self) -> tuple[Resource, ...]:
        """Only Volcano's plugins make more than services."""
        return OWNED_KINDS if self._settings.volcano_jobs else (SERVICES,)

    def _may_list(self, kind: Resource) -> bool:
        """Forbidden is an answer for the driver of one namespace. One of all must see nodes: it would overfill them."""
        try:
            self._cluster.list(kind, None, limit=1)
        except Forbidden:
            if self._settings.namespace is None:
                raise
            return False
        return True

    def _is_served(self, kind: Resource) -> bool:
        """What makes rules is optional: a cluster may not have the kind, and a driver not the right to see it."""
        try:
            self._cluster.list(kind, None, limit=1)
        except (Forbidden, NotFound):
            return False
        return True

    def _reflector(
        self,
        kind: Resource,
        changed: Callable[[Object | None, Object | None], None],
        keep: Callable[[Object], Object],
        namespace: str | None = "",
        *,
        labels: str = "",
        index: Callable[[Object], str] = lambda _: "",
    ) -> Reflector:
        return Reflector(
            self._cluster,
            kind,
            changed=changed,
            namespace=self._settings.namespace if namespace == "" else namespace,
            labels=labels,
            keep=keep,
            index=index,
            restarted=self._recorder.watch_restarted,
        )

    def start(self) -> None:
        """Follow the cluster in threads, one a kind."""
        self.prepare()
        self.followed = True
        self.schedulers.follow()
        for reflector in self._reflectors.values():
            reflector.start()

    def stop(self) -> None:
        """End the threads."""
        self.schedulers.end()
        for reflector in self._all():
            reflector.end()
        for reflector in self._all():
            reflector.stop()

    def _all(self) -> list[Reflector]:
        return [*self._reflectors.values(), *self.schedulers.reflectors()]

    def refresh(self) -> None:
        """List everything now, unless it is followed anyway; ClusterError."""
        self.prepare()
        if not self.followed:
            for reflector in self._all():
                reflector.refresh()

    def relist(self) -> None:
        """Believe nothing that is not newer than this moment; ``synced`` says when that is so."""
        for reflector in self._all():
            reflector.relist()

    def synced(self) -> bool:
        """Whether everything there is has been listed."""
        return bool(self._reflectors) and all(reflector.synced() for reflector in self._reflectors.values())

    def wait_synced(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for that."""
        end = time.monotonic() + timeout
        return all(r.wait_synced(max(0.0, end - time.monotonic())) for r in list(self._reflectors.values()))

    def problems(self) -> list[str]:
        """What keeps the caches from following the cluster."""
        return [f"{r.resource.plural}: {r.problem}" for r in self._all() if r.problem is not None]

    def refused(self) -> Forbidden | None:
        """The right without which they will never hold all that is decided on."""
        found = (reflector.problem for reflector in tuple(self._reflectors.values()))
        return next((problem for problem in found if isinstance(problem, Forbidden)), None)

    # What they hold

    def jobs(self) -> Iterator[tuple[JobRef, Object]]:
        """Every job."""
        for kind in self._job_kinds():
            for stored in self._reflectors[kind].items():
                yield JobRef.of(kind, stored), stored

    def job(self, ref: JobRef) -> Object | None:
        """One job."""
        reflector = self._reflectors.get(ref.resource)
        return reflector.get(ref.namespace, ref.name) if reflector else None

    def pods(self, namespace: str, uid: str) -> list[Object]:
        """The pods of a job."""
        return self._reflectors[PODS].cache.group(names.owned_key(namespace, uid))

    def snapshot(self, claims: Iterable[Claim], now: float) -> Snapshot:
        """What admission decides on: these jobs, the nodes, the pods of everybody, and the rules."""
        nodes = self._reflectors[NODES].items() if self.knows_room else None
        rules = rules_of(self.rules(QUEUES), self.rules(PRIORITY_CLASSES))
        with self._seeing:
            return self._snapshots.take(claims, nodes, now=now, rules=rules)

    def rules(self, kind: Resource) -> list[Object]:
        """The queues, or the priority classes."""
        return self._reflectors[kind].items() if kind in self._reflectors else []

    def objects(self, namespace: str, uid: str) -> dict[tuple[str, str], Object]:
        """What else a job owns, by kind (that of a gang scheduler with its group) and name."""
        owned: dict[tuple[str, str], Object] = {
            (kind.kind, stored["metadata"]["name"]): stored
            for kind in self._owned_kinds()
            for stored in self._reflectors[kind].cache.group(names.owned_key(namespace, uid))
        }
        return owned | self.schedulers.objects(namespace, uid)

    def served(self, scheduler: Scheduler) -> Served | None:
        """What there is of another gang scheduler, that a job asks for; None while that cannot be told."""
        priorities = rules_of((), self.rules(PRIORITY_CLASSES)).priorities
        return self.schedulers.served(scheduler, {name: one.value for name, one in priorities.items()})

    def confirm(self, ref: JobRef, uid: str) -> None:
        """List the pods of one job now: whoever takes a job over must not miss those its last driver made."""
        if self.followed:
            labels = f"{names.JOB_UID}={uid}"
            self._reflectors[PODS].refresh_group(
                names.owned_key(ref.namespace, uid), namespace=ref.namespace, labels=labels
            )

    def look_again(self, ref: JobRef, uid: str) -> None:
        """Get a job anew; ClusterError when that fails."""
        try:
            self.wrote(ref.resource, self._cluster.get(ref.resource, ref.namespace, ref.name))
        except NotFound:
            self.gone(ref.resource, ref.namespace, ref.name, uid)

    # What the driver did itself

    def wrote(self, kind: Resource, stored: Object) -> None:
        """The server's answer to a write."""
        self._of(kind).put(stored)

    def deleted(self, kind: Resource, namespace: str, name: str, uid: str, now: float) -> None:
        """The server has accepted a deletion."""
        self._of(kind).expect_deletion(namespace, name, uid, format_time(now))

    def gone(self, kind: Resource, namespace: str, name: str, uid: str) -> None:
        """The server has said that this object is not there."""
        self._of(kind).discard(namespace, name, uid)

    def _of(self, kind: Resource) -> Reflector:
        return self._reflectors.get(kind) or self.schedulers.reflector(kind)

    # What changed

    def _job_changed(self, kind: Resource) -> Callable[[Object | None, Object | None], None]:
        return partial(self._ring_job, kind)

    def _ring_job(self, kind: Resource, old: Object | None, new: Object | None) -> None:
        there = new or old
        if there is not None:
            self._rung(JobRef.of(kind, there))

    def _owned_changed(self, old: Object | None, new: Object | None) -> None:
        self._ring_owner(new or old)

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        with self._seeing:
            self._snapshots.change(old, new)
        if old is not None and (new is None or new["metadata"]["uid"] != old["metadata"]["uid"]):
            self.departed.add(old)
        self._ring_owner(new or old)
        if not _holds_room(new) and (old is None or _holds_room(old)):
            self._room()

    def _ring_owner(self, owned: Object | None) -> None:
        ref = JobRef.of_owner(owned) if owned is not None else None
        if ref is not None:
            self._rung(ref)

    def _rule_changed(self, old: Object | None, new: Object | None) -> None:
        if old is None or new is None or not slim.same_rule(old, new):
            self._room()

    def _node_changed(self, old: Object | None, new: Object | None) -> None:
        if not slim.same_room(old, new):
            self._room()


def _holds_room(pod: Object | None) -> bool:
    return pod is not None and (pod.get("status") or {}).get("phase") not in _OVER

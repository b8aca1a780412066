"""Find states that must not last if all controllers are healthy, such as jobs that make no progress."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from decimal import Decimal
from typing import Final, NamedTuple

from tests.faults.record import (
    ENDED,
    JOBS,
    Record,
    cpus,
    deleting,
    is_ready,
    name,
    on_a_node,
    owner,
    phase,
    pod_cpus,
    replica,
    requested,
    type_of,
    uid,
)
from tf_dist.cluster.api import Object
from tf_dist.core.model.job import CleanPodPolicy, Job, ServiceStyle
from tf_dist.core.model.status import Phase, Status

# Reasons after which all running pods of the job must stop.
CUT_SHORT: Final = ("DeadlineExceeded", "BackoffLimitExceeded", "MaxDisruptionsExceeded")
# Seconds within which healthy controllers do what is due at a time.
GRACE: Final = 20.0
# Seconds within which healthy controllers do other work, and within which delays and recoveries end.
SOON: Final = 60.0
LATE: Final = 700.0


class Unrest(NamedTuple):
    """A state that must not last: its object, its kind, a text, and the seconds for which it may last."""

    who: str
    what: str
    text: str
    patience: float = SOON

    def __str__(self) -> str:
        return f"{self.who} {self.text}"


class Rest:
    """Checks the objects of a record."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def unrest(self) -> list[Unrest]:
        """All states that must not last if all controllers are healthy."""
        record = self._record
        found = [
            Unrest(name(stored), what, text, patience)
            for _, stored in record.of(*JOBS)
            for what, text, patience in self._unrest(stored)
        ]
        jobs = {uid(job) for _, job in record.of(*JOBS)}
        for key, pod in record.of("pods"):
            if deleting(pod):
                found.append(Unrest(key.name, "leaving", "is on its way out", LATE))
            if owner(pod) and owner(pod) not in jobs:
                found.append(Unrest(key.name, "orphan", "has no owner"))
        return found + list(self._first_in_line())

    def _unrest(self, stored: Object) -> Iterator[tuple[str, str, float]]:
        record = self._record
        memory, job = record.memory(stored), record.job(stored)
        if deleting(stored):
            yield "deleting", "is being deleted", LATE
        pods = record.pods_of(uid(stored))
        if job is None:
            if pods and memory.never_accepted:
                yield "unreadable", "was never readable, and has pods", SOON
            return
        if memory.last_error and not self._is_over_quota(stored, memory.last_error):
            yield "stalled", f"calls itself stalled: {memory.last_error}", SOON
        living = [pod for pod in pods if phase(pod) not in ENDED]
        if memory.finished:
            yield from self._clean(stored, job, memory, living)
        elif job.run_policy.suspend:
            if memory.phase is not Phase.ABORTED or living:
                yield "suspended", f"is suspended, and {memory.phase} with {len(living)} pods", SOON
        elif memory.phase is Phase.ABORTED:
            if memory.reason == "Suspended" or living:
                yield "resumed", "was resumed, and is not", SOON
        elif memory.phase not in (Phase.PENDING, Phase.RUNNING):
            yield "phase", f"is {memory.phase}", LATE
        elif memory.admission is not None:
            yield from self._runs(stored, job, memory)
        elif living:
            yield "without a place", f"has no place, and {len(living)} pods", SOON

    def _is_over_quota(self, stored: Object, last_error: str) -> bool:
        """Whether an existing ResourceQuota keeps the job from making progress."""
        namespace = stored["metadata"]["namespace"]
        limits = (obj for key, obj in self._record.of("resourcequotas") if key.namespace == namespace)
        return "exceeded quota" in last_error and any((one.get("spec") or {}).get("hard") for one in limits)

    def _clean(
        self, stored: Object, job: Job, memory: Status, living: list[Object]
    ) -> Iterator[tuple[str, str, float]]:
        policy, ttl = job.run_policy.clean_pods, job.run_policy.ttl
        keeps = policy is CleanPodPolicy.NONE and memory.reason not in CUT_SHORT
        if living and not keeps:
            yield "runs on", f"is over ({memory.reason}), and {len(living)} pods run", SOON
        if policy is CleanPodPolicy.ALL:
            left = [key.name for key, one in self._record.of("pods", "services") if owner(one) == uid(stored)]
            if left and job.services is ServiceStyle.PER_REPLICA:
                yield "left", f"is over and cleaned up, but for {left}", SOON
        if ttl is not None and (memory.completion_time or 0.0) + ttl + GRACE < self._record.now():
            yield "ttl", f"was to be deleted {ttl:g} s after its end", SOON

    def _runs(self, stored: Object, job: Job, memory: Status) -> Iterator[tuple[str, str, float]]:
        record, place, limit = self._record, memory.admission, job.run_policy.active_deadline
        assert place is not None
        if limit is not None and memory.start_time is not None and memory.start_time + limit + GRACE < record.now():
            yield "deadline", "is over its deadline", SOON
        if memory.phase is not Phase.RUNNING:
            yield "starting", f"has a place, and is {memory.phase} ({memory.reason})", LATE
        pods = record.pods_of(uid(stored))
        for spec in job.replica_specs:
            size = place.sizes.get(spec.type, spec.replicas)
            if size > spec.most:
                yield "size", f"has a place for {size} {spec.type}, and asks for {spec.most} at most", SOON
            done = {one.index for one in memory.succeeded if one.type == spec.type}
            there = {replica(pod)[1] for pod in pods if type_of(pod) == spec.type and not deleting(pod)}
            # Succeeded replicas, and then the first of the others, up to the admitted size.
            order = sorted(range(min(size, spec.most)), key=lambda index: (index not in done, index))
            wanted = set(order[: place.admitted_sizes.get(spec.type, spec.replicas)])
            if wanted - done - there or there - wanted:
                yield "pods", f"has {spec.type} {sorted(there)} of {sorted(wanted)}", LATE
        if waiting := [name(pod) for pod in pods if phase(pod) == "Pending"]:
            yield "pending", f"has {waiting}, which have not started", LATE

    def _first_in_line(self) -> Iterator[Unrest]:
        """Report the first waiting job of a queue if capacity and quota for the job are actually free."""
        record = self._record
        lines: dict[str, list[tuple[tuple[float, ...], Object]]] = defaultdict(list)
        for _, stored in record.of(*JOBS):
            memory, job = record.memory(stored), record.job(stored)
            if job is None or memory.finished or memory.admission is not None or job.run_policy.suspend:
                continue
            if memory.phase is not Phase.PENDING or memory.not_before > record.now():
                continue
            if memory.unconfirmed or memory.refused_nodes or not record.open_to(stored):
                continue
            rank = (-self._priority(job), max(memory.created or 0.0, memory.not_before))
            lines[record.queue_of(stored)].append((rank, stored))
        for line in lines.values():
            _, first = min(line, key=lambda one: (one[0], name(one[1])))
            why = self._fits(first) or self._in_the_way(first)
            # After a step of the clocks, jobs have waited for so long that the capacity may be reserved for another.
            if why and len(lines) == 1 and not (record.clocks_stepped and len(line) > 1):
                text = f"waits ({record.memory(first).display_message}) beside {why}"
                yield Unrest(name(first), "waits", text)

    def _priority(self, job: Job) -> float:
        classes = {key.name: obj.get("value", 0) for key, obj in self._record.of("priorityclasses.scheduling.k8s.io")}
        said = ((spec.template.get("spec") or {}).get("priorityClassName") for spec in job.replica_specs)
        return float(classes.get(job.scheduling.priority_class or next(filter(None, said), ""), 0))

    def _fits(self, stored: Object, without: Collection[Object] = ()) -> str:
        """The free capacity in which a waiting job could start without these jobs ("": the job does not fit)."""
        record, job, gone = self._record, self._record.job(stored), {uid(one) for one in without}
        assert job is not None
        need = sum((spec.replicas * pod_cpus(spec) for spec in job.replica_specs), Decimal(0))
        jobs = [other for _, other in record.of(*JOBS) if uid(other) not in gone]
        pods = [pod for _, pod in record.of("pods") if phase(pod) not in ENDED and owner(pod) not in gone]
        rooms = [self._free(node, pods) for _, node in record.of("nodes") if is_ready(node)]
        to_come = sum((self._to_come(other) for other in jobs), Decimal(0))
        free = sum(rooms, Decimal(0)) - to_come
        # The capacity of several nodes may be free, but too little on each node. So count how many pods of the largest
        # size fit. A future pod uses at most as many of these as it has CPUs.
        largest = max((pod_cpus(spec) for spec in job.replica_specs), default=Decimal(0)) or Decimal(1)
        seats = sum(int(room // largest) for room in rooms) - int(to_come)
        if seats < sum(spec.replicas for spec in job.replica_specs):
            return ""
        queue = record.queue_of(stored)
        limit = record.nominal(queue)
        held = sum((record.holds(other) for other in jobs if record.queue_of(other) == queue), Decimal(0))
        if limit is not None and held + need > limit:
            return ""
        namespace = stored["metadata"]["namespace"]
        # No pods are preempted for a ResourceQuota, so all pods count.
        every = (pod for _, pod in record.of("pods") if phase(pod) not in ENDED)
        there = [pod for pod in every if pod["metadata"]["namespace"] == namespace]
        most = record.most("pods", namespace)
        if most is not None and len(there) + sum(spec.replicas for spec in job.replica_specs) > most:
            return ""
        most = record.most("requests.cpu", namespace)
        if most is not None and sum((requested(pod["spec"]) for pod in there), need) > most:
            return ""
        return f"{free} CPUs that are free, of which it needs {need}"

    def _in_the_way(self, first: Object) -> str:
        """The jobs of lower priority in the same queue that a waiting job could preempt."""
        record, queue = self._record, self._record.queue_of(first)
        document = next((obj for key, obj in record.of("queues.tf-dist.dev") if key.name == queue), {})
        job = record.job(first)
        if job is None or (document.get("spec") or {}).get("preemption") == "Never":
            return ""
        lower = [
            other
            for _, other in record.of(*JOBS)
            if record.queue_of(other) == queue
            and self._have_one_leader(first, other)
            and (its := record.job(other)) is not None
            and self._priority(its) < self._priority(job)
            and record.holds(other)
        ]
        return f"{', '.join(map(name, lower))} of lower priority" if lower and self._fits(first, without=lower) else ""

    def _have_one_leader(self, *jobs: Object) -> bool:
        """Whether the jobs have the same leader. A leader knows jobs of other kinds only by their pods."""
        kinds = {key.kind for key, stored in self._record.of(*JOBS) if any(stored is job for job in jobs)}
        return len({tuple(self._record.leaders(kind, jobs[0]["metadata"]["namespace"])) for kind in kinds}) == 1

    def _free(self, node: Object, pods: list[Object]) -> Decimal:
        """The CPUs of a node that these pods do not use. Pods request whole CPUs."""
        taken = (requested(pod["spec"]) for pod in pods if pod["spec"].get("nodeName") == name(node))
        return max(Decimal(0), cpus(node) - sum(taken, Decimal(0)))

    def _to_come(self, stored: Object) -> Decimal:
        there = [pod for pod in self._record.pods_of(uid(stored)) if on_a_node(pod)]
        return max(Decimal(0), self._record.holds(stored) - sum((requested(pod["spec"]) for pod in there), Decimal(0)))

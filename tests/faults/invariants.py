"""Invariants of every write under every fault. Each change of the store is checked when it happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Final

from tests.faults.record import (
    ENDED,
    JOBS,
    OWNED,
    TERMINAL,
    Author,
    Record,
    Truth,
    attempt,
    cpus,
    is_ready,
    kind_of_owner,
    name,
    on_a_node,
    owner,
    phase,
    replica,
    requested,
    type_of,
    uid,
)
from tf_dist.cluster.api import Object
from tf_dist.cluster.apiserver.storage.store import Key
from tf_dist.core.model.job import Job
from tf_dist.core.model.status import Admission, Phase, Status

# Seconds from a verdict to the write of the status. The verdict may be older than the release of a node.
UNDER_WAY: Final = 5.0
# Seconds after which every controller has seen a pod.
SEEN: Final = 15.0

# Causes of restarts that do not count towards the limit: preemption, resizing, and lost nodes.
_UNCHARGED: Final = frozenset({"Preempted", "Resized", "RecoveryTimeout"})


class Invariants(Record):
    """``broken`` lists the violations so far. ``strict`` means that the caches of controllers are up to date."""

    def __init__(self, now: Callable[[], float], author: Callable[[], Author]) -> None:
        super().__init__(now, author)
        self.broken: list[str] = []
        self.strict = False
        self._asked: dict[str, dict[str, int]] = {}
        self._unpinned: dict[str, float] = {}  # when a job was released from a node
        self._corrected: dict[str, float] = {}  # when the spec of a job became valid again
        self._bound: dict[str, float] = {}  # when a pod got its node, by uid
        self._unseen: set[str] = set()
        # Jobs written while a Lease that a user had deleted may have had two holders. One of them does not see the pods
        # of the other.
        self._led_twice: set[str] = set()
        self._room: dict[str, Decimal] = {}

    def wrote(self, key: Key, before: Object | None, after: Object | None, author: Author) -> None:
        try:
            self._judge(key, before, after, author)
        except AssertionError as error:
            self.broken.append(f"{error} ({author.process or 'hands'} at {self.now():.1f}: {key.kind} {key.name})")

    # Every write

    def _judge(self, key: Key, before: Object | None, after: Object | None, author: Author) -> None:
        if key.kind == "pods" and after is not None and on_a_node(after):
            self._bound.setdefault(uid(after), self.now())
        match key.kind:
            case "pods" if before is None and after is not None and author.process and not author.late:
                self._comes(after, author)
            case "nodes" if after is not None:
                self._room[key.name] = max(self._room.get(key.name, Decimal(0)), cpus(after))
            case kind if kind in JOBS and after is not None:
                self._job(key, before, after, author)
        if not author.process or author.late:
            return
        if key.kind in JOBS:
            self.leads(author, key.kind, key.namespace)
        if key.kind in OWNED:
            self._own(before, after, author)

    def leads(self, author: Author, kind: str, namespace: str) -> None:
        """A process writes only while it holds the Lease of the namespace or of the cluster."""
        if author.leases and not self.excused(kind, namespace):
            leaders = self.leaders(kind, namespace)
            assert author.process in leaders, f"{author.process} wrote, and {leaders} lead the {kind} of {namespace}"

    def _own(self, before: Object | None, after: Object | None, author: Author) -> None:
        """A controller writes only objects of jobs whose kind it leads."""
        there = before or after
        assert there is not None
        assert owner(there), "a controller wrote what is not a job's"
        self.leads(author, kind_of_owner(there), there["metadata"]["namespace"])

    def _by_uid(self, wanted: str) -> Object | None:
        return next((job for _, job in self.of(*JOBS) if uid(job) == wanted), None)

    # Pods

    def _comes(self, pod: Object, author: Author) -> None:
        """When a controller creates a pod, no conflicting pod of an earlier attempt runs, and dependencies are up."""
        if self.excused(kind_of_owner(pod), pod["metadata"]["namespace"]):
            self._led_twice.add(owner(pod))
            return
        stored = self._by_uid(owner(pod))
        made = attempt(pod)
        for other in self.pods_of(owner(pod)):
            there = attempt(other)
            met = (
                there[:1] != made[:1]
                or (there[:2] != made[:2] and type_of(other) == type_of(pod))
                or (there != made and replica(other) == replica(pod))
            )
            alive = phase(other) not in ENDED
            assert not (met and alive), f"attempt {made} of {replica(pod)} comes while {there} of {replica(other)} runs"
        job = self.job(stored) if stored is not None else None
        spec = job.spec(type_of(pod)) if job is not None else None
        if job is not None and spec is not None and spec.depends is not None and self._sees(author):
            up = [self._was_up(job, type_, owner(pod)) for type_ in spec.depends.on]
            assert any(up) if spec.depends.any else all(up), f"{replica(pod)} comes before {spec.depends.on} is up"

    def _sees(self, author: Author) -> bool:
        """Whether the author has seen that the server was restored. Without a Lease, it does not restart then."""
        return author.leases or self.now() - self.restored > SEEN

    def _was_up(self, job: Job, type_: str, owner_uid: str) -> bool:
        spec, truth = job.spec(type_), self.truth[owner_uid]
        there = {index for kind, index in truth.ready | truth.succeeded if kind == type_}
        return spec is None or len(there) >= min(spec.min_replicas, spec.replicas)

    # Jobs

    def _job(self, key: Key, before: Object | None, after: Object, author: Author) -> None:
        old = self.memory(before) if before is not None else Status()
        new = self.memory(after)
        if before is not None and self.forgotten(before) and not self.forgotten(after):
            self._corrected[uid(after)] = self.now()
        if not author.process or new == old:
            return
        if self._on(old.admission) - self._on(new.admission) and new.admission is not None:
            self._unpinned[uid(after)] = self.now()
        assert new.attempts.job >= old.attempts.job, f"attempt {old.attempts.job} became {new.attempts.job}"
        if self.excused(key.kind, key.namespace):
            self._led_twice.add(uid(after))
        self._budget(after, new)
        self._end(after, new)
        job = self.job(after)
        place = new.admission
        if place is not None and not place.by and job is not None:
            given = old.admission is None or sum(place.admitted_sizes.values()) > sum(
                old.admission.admitted_sizes.values()
            )
            self._no_smaller_than_it_says(after, job, place)
            if given and self._sees(author):
                self._given(key, before, after, author)
            if author.sees_nodes and self._sees(author):
                self._on_nodes(key, after, old.admission, author)

    def _no_smaller_than_it_says(self, stored: Object, job: Job, place: Admission) -> None:
        """Only the workers of an elastic job may be fewer than its document requests."""
        asked: dict[str, int] = self._asked.setdefault(uid(stored), {})
        for spec in job.replica_specs:
            # The job may have been scaled up since its admission.
            asked[spec.type] = min(asked.get(spec.type, spec.replicas), spec.replicas)
            if spec.min_replicas == spec.replicas and spec.type in place.sizes:
                size = place.sizes[spec.type]
                assert size >= asked[spec.type], f"{size} {spec.type} of {spec.replicas}, and it is not elastic"

    def _budget(self, stored: Object, memory: Status) -> None:
        if uid(stored) in self._led_twice:
            return
        truth, job = self.truth[uid(stored)], self.job(stored)
        spent = sum(count for cause, count in memory.restarts.items() if cause not in _UNCHARGED)
        disrupted, failed = memory.total_disruptions, len(truth.failed)
        assert spent <= failed, f"{spent} restarts for {failed} pods that failed"
        assert spent + disrupted <= len(truth.failed | truth.taken), (
            f"{spent} restarts and {disrupted} disruptions for {failed} pods that failed and {len(truth.taken)} taken"
        )
        limit = job.run_policy.max_restarts if job is not None else None
        assert limit is None or spent <= limit, f"{spent} restarts of {limit}"

    def _end(self, stored: Object, memory: Status) -> None:
        truth, job = self.truth[uid(stored)], self.job(stored)
        true = {one["type"] for one in (stored.get("status") or {}).get("conditions") or () if one["status"] == "True"}
        assert not {"Succeeded", "Failed"} <= true, "it has both succeeded and failed"
        if memory.phase is Phase.COMPLETING and job is not None:
            self._succeeded(job, memory, truth)
        if memory.phase not in TERMINAL:
            assert truth.ended is None, f"{truth.ended} was the end, and now it is {memory.phase} {memory.reason}"
            return
        end = memory.phase.value, memory.reason
        assert truth.ended in (None, end), f"{truth.ended} was the end, and now it is {end}"
        truth.ended = end
        assert not memory.reason.startswith("Invalid"), "an edit has ended it"
        if job is None:
            return
        match memory.reason:
            case "JobSucceeded" | "MinSuccess":
                assert memory.phase is Phase.COMPLETED, end
                self._succeeded(job, memory, truth)
            case "TaskCompleted":
                assert memory.phase is Phase.COMPLETED, end
                assert truth.succeeded, "no replica of it has succeeded"
            case "BackoffLimitExceeded":
                limit, failures = job.run_policy.max_restarts, len(truth.failed)
                within = limit is None or failures <= limit
                assert not within, f"{failures} failures are within the limit of {limit}"
            case "MaxDisruptionsExceeded":
                assert truth.taken, "nothing was taken from it"
            case "PodFailed" | "TaskFailed":
                assert truth.failed, "no pod of it has failed"
            case "PodEvicted" | "Preempted" | "NodeLost":
                assert truth.taken or memory.reason == "Preempted", "nothing was taken from it"
            case "DeadlineExceeded":
                assert job.run_policy.active_deadline is not None, "it has no deadline"
            case _:
                raise AssertionError(f"nothing explains {end}")

    def _succeeded(self, job: Job, memory: Status, truth: Truth) -> None:
        """The job has succeeded by the rules of its dialect."""
        sizes = {**memory.last_sizes, **(memory.admission.sizes if memory.admission else {})}
        done = truth.succeeded
        if job.counting is not None:
            needed = job.counting.min_success or 1
            assert len(done) >= min(needed, 1), f"it has succeeded with {sorted(done)}"
            return
        held = [
            all((rule.type, index) in done for index in self._members(job, sizes, rule.type, rule.index))
            for rule in job.success
        ]
        assert any(held) or not held, f"it has succeeded with {sorted(done)}"

    def _members(self, job: Job, sizes: Mapping[str, int], type_: str, index: int | None) -> Iterable[int]:
        spec = job.spec(type_)
        if spec is None:
            return ()
        return range(min(sizes.get(type_, spec.replicas), spec.most)) if index is None else (index,)

    # Admission

    def _given(self, key: Key, before: Object | None, stored: Object, author: Author) -> None:
        """A job is admitted or grows only if the cluster has capacity for all admissions of the same controller."""
        if not author.sees_nodes:
            self._unseen.add(uid(stored))  # the controller does not know the free capacity
            return
        self._unseen.discard(uid(stored))
        others = self._decided_by(author, key)
        promised = sum((self.holds(job) for job in (*others, stored) if uid(job) not in self._unseen), Decimal(0))
        promised -= self._pinned_in_vain(others if before is None else [*others, before])
        room = sum(self._room.values(), Decimal(0))
        assert promised <= room, f"places for {promised} CPUs were given away, and there are {room}"
        if self.strict and not author.late:
            self._given_strictly([*others, stored], stored)

    def _decided_by(self, author: Author, but: Key) -> list[Object]:
        """The other jobs that a controller decides about.

        It knows jobs of other controllers only by their pods. If two controllers assign the same capacity, the schedule
        timeout resolves this. The timeout also resolves the case of a job whose spec became invalid before the next
        leader knew the job (core/reconciler/accepted_spec.py).
        """
        kinds = author.kinds - author.unserved
        found = (job for other, job in self.of(*JOBS) if other != but and other.kind in kinds)
        known = (job for job in found if not self.forgotten(job))
        return [job for job in known if self.now() - self._corrected.get(uid(job), float("-inf")) > UNDER_WAY]

    def _pinned_in_vain(self, jobs: list[Object]) -> Decimal:
        """The CPUs of future pods whose assigned node, or every node, has no capacity for them.

        Other pods have filled it in the meantime, or leaders of different kinds have given it to two jobs.
        """
        free = dict(self._room)
        for _, pod in self.of("pods"):
            if on_a_node(pod) and pod["spec"]["nodeName"] in free:
                free[pod["spec"]["nodeName"]] -= int(requested(pod["spec"]))
        found = Decimal(0)
        to_come = [one for job in jobs for one in self.to_come(job)]
        for node, cpu in sorted(to_come, key=lambda one: not one[0]):
            on = node or max(free, key=free.__getitem__)
            if free.get(on, cpu) < cpu:
                found += cpu
            elif on in free:
                free[on] -= cpu
        return found

    def _on_nodes(self, key: Key, stored: Object, before: Admission | None, author: Author) -> None:
        """If a job gets more of a node, the assignments of the node do not exceed the most that it ever had.

        A job that is resized is also assigned the nodes of its pods that could go to any node.
        """
        mine = self.on_nodes(stored, again=True)
        given = self._on(before) | Counter(
            pod["spec"]["nodeName"] for pod in self.pods_of(uid(stored)) if on_a_node(pod)
        )
        more = {node for node, count in self._on(self.memory(stored).admission).items() if count > given[node]}
        others = [self.on_nodes(job, again=False) for job in self._decided_by(author, key)]
        for node in sorted(more & self._room.keys()):
            promised = sum((one.get(node, Decimal(0)) for one in others), mine.get(node, Decimal(0)))
            room = self._room[node]
            assert promised <= room, f"places for {promised} CPUs of {node} were given away, and it has {room}"

    def _on(self, place: Admission | None) -> Counter[str]:
        """The number of pods of an admission on each node."""
        found: Counter[str] = Counter()
        for nodes in place.placement.values() if place is not None else ():
            found.update(nodes)
        return found

    def _given_strictly(self, jobs: list[Object], stored: Object) -> None:
        seen = [job for job in jobs if uid(job) not in self._unseen]
        taken = sum((self.holds(job) for job in seen), Decimal(0)) + self._pods_beside(seen)
        taken -= self._without_room([job for job in seen if job is not stored])
        ready = {key.name: cpus(node) for key, node in self.of("nodes") if is_ready(node)}
        elsewhere = (pod for _, pod in self.of("pods") if on_a_node(pod) and pod["spec"]["nodeName"] not in ready)
        room = sum((*ready.values(), *(requested(pod["spec"]) for pod in elsewhere)), Decimal(0))
        assert taken <= room, f"with {name(stored)} {taken} CPUs are taken of {room}"
        queue = self.queue_of(stored)
        limit = self.nominal(queue)
        held = sum((self.holds(job) for job in jobs if self.queue_of(job) == queue), Decimal(0))
        assert limit is None or held <= limit, f"queue {queue} holds {held} CPUs of {limit}"
        namespace = stored["metadata"]["namespace"]
        most = self.most("pods", namespace)
        pods = sum(self.wanted(job) for job in jobs if job["metadata"]["namespace"] == namespace)
        assert most is None or pods <= most, f"{pods} pods are promised in {namespace}, which may have {most}"

    def _without_room(self, jobs: list[Object]) -> Decimal:
        """The CPUs of future pods that use no capacity of others: pods that fit on no node, and pods whose assigned
        node is lost or was released a moment ago."""
        nodes = {key.name: cpus(node) for key, node in self.of("nodes") if is_ready(node)}
        for _, pod in self.of("pods"):
            if on_a_node(pod) and pod["spec"]["nodeName"] in nodes:
                nodes[pod["spec"]["nodeName"]] -= requested(pod["spec"])
        found, anywhere = Decimal(0), list[Decimal]()
        for job in jobs:
            for node, cpu in self.to_come(job):
                if node and node not in nodes:
                    found += cpu
                elif node:
                    nodes[node] -= cpu
                elif self.now() - self._unpinned.get(uid(job), float("-inf")) < UNDER_WAY:
                    found += cpu
                else:
                    anywhere.append(cpu)
        for cpu in sorted(anywhere, reverse=True):
            fitting = [node for node, free in nodes.items() if free >= cpu]
            if fitting:
                nodes[min(fitting, key=nodes.__getitem__)] -= cpu
            else:
                found += cpu
        return found

    def _pods_beside(self, jobs: list[Object]) -> Decimal:
        """The CPUs of pods that the admissions of these jobs do not include."""
        within = {uid(job) for job in jobs if self.holds(job)}
        found = Decimal(0)
        for key, pod in self.of("pods"):
            if owner(pod) and owner(pod) not in within and on_a_node(pod):
                # The verdict may be older than the scheduler's decision about a pod without an admission.
                known = self.now() - self._bound.get(uid(pod), float("-inf")) > UNDER_WAY
                mine = known and any(owner(pod) == uid(job) for job in jobs)
                if mine or self.now() - self.written[key] > SEEN:
                    found += requested(pod["spec"])
        return found

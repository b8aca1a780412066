"""What must hold of every write, whatever breaks: each change of the store is judged at the moment when it happens.

``Invariants`` is the store's journal, so that no write escapes it, whoever it is from. What is true (which pods failed
by themselves, which were taken away, what succeeded) is derived from the writes of those who do not drive.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, NamedTuple

from tf_dist.cluster.api import Object
from tf_dist.cluster.memory.store import Key
from tf_dist.core import names
from tf_dist.core.accepted_spec import read_stored
from tf_dist.core.model import CleanPodPolicy, Job, ReplicaSpec, ServiceStyle
from tf_dist.core.quantity import parse_quantity
from tf_dist.core.status import FREE, LIVE, Phase, Status
from tf_dist.core.status_codec import load_status, stored_status
from tf_dist.driver.intents import ADMITTING, ARBITER
from tf_dist.driver.lease import BROKEN_BY

JOBS: Final = ("tfjobs.kubeflow.org", "jobs.batch.volcano.sh")
LEASES: Final = "leases.coordination.k8s.io"
OWNED: Final = ("pods", "services", "configmaps", "networkpolicies.networking.k8s.io")
ENDED: Final = ("Succeeded", "Failed")
TERMINAL: Final = (Phase.COMPLETED, Phase.FAILED, Phase.TERMINATED)
# Ends at which whatever still runs has to stop.
CUT_SHORT: Final = ("DeadlineExceeded", "BackoffLimitExceeded", "MaxDisruptionsExceeded")
# Of a Lease's duration, as a clock that is as fast as may be measures it.
FAST: Final = 0.8
# Seconds within which what is due by a clock is done, where all are well.
GRACE: Final = 30.0


class Author(NamedTuple):
    """Whose write it is: ``driver``, as jobs name it (None: a user's, a kubelet's, or that of Kubernetes itself);
    ``late``: it was sent long ago. ``shares``: it decides about places together with others, so that it has to write
    down what it is about to give; ``sees_nodes``: it knows how much room there is."""

    driver: str | None = None
    late: bool = False
    shares: bool = False
    sees_nodes: bool = False


HANDS: Final = Author()


@dataclass
class Truth:
    """What became of a job's pods: ``failed`` by themselves, ``taken`` away; which replicas ``succeeded``, which were
    ever ``ready``; how often kubelets restarted the containers of each pod."""

    failed: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)
    succeeded: set[tuple[str, int]] = field(default_factory=set)
    ready: set[tuple[str, int]] = field(default_factory=set)
    containers: dict[str, int] = field(default_factory=dict)
    ended: tuple[str, str] | None = None


class Invariants:
    """Follows one store. ``now``: true seconds since the epoch; ``author``: whose write is being made.

    ``broken`` is what was wrong so far, in words. ``strict``: drivers see everything as it is by now.
    """

    def __init__(self, now: Callable[[], float], author: Callable[[], Author]) -> None:
        self.objects: dict[Key, Object] = {}
        self.truth: dict[str, Truth] = defaultdict(Truth)
        self.broken: list[str] = []
        self.strict = False
        self._now = now
        self._author = author
        self._written: dict[Key, float] = {}
        self._room: dict[str, Decimal] = {}
        self._opened: dict[Key, tuple[str, dict[str, str]]] = {}
        self._read: dict[str, tuple[object, Job | None]] = {}

    # A journal

    def load(self) -> tuple[int, Iterable[tuple[Key, Object]]]:
        """What there is: nothing in the beginning, and what was saved after a restoration."""
        version = max((int(obj["metadata"]["resourceVersion"]) for obj in self.objects.values()), default=0)
        return version, list(self.objects.items())

    def restore(self, objects: Mapping[Key, Object]) -> None:
        """The store has been set back to this: what was written since never was."""
        self.objects = dict(objects)
        self._opened.clear()
        for truth in self.truth.values():
            truth.ended = None

    def write(self, key: Key, version: int, obj: Object | None) -> None:
        """A write, just before anybody sees it."""
        before, author = self.objects.get(key), self._author()
        try:
            self._judge(key, before, obj, author)
        except AssertionError as error:
            self.broken.append(f"{error} ({author.driver or 'hands'} at {self._now():.1f}: {key.kind} {key.name})")
        self._written[key] = self._now()
        if obj is None:
            self.objects.pop(key, None)
        else:
            self.objects[key] = obj

    def close(self) -> None:
        """Nothing to let go of."""

    # What there is

    def of(self, *kinds: str) -> Iterator[tuple[Key, Object]]:
        """All objects of some kinds."""
        return ((key, obj) for key, obj in list(self.objects.items()) if key.kind in kinds)

    def pods_of(self, uid: str) -> list[Object]:
        """The pods that a job controls."""
        return [pod for _, pod in self.of("pods") if owner(pod) == uid]

    def job(self, stored: Object) -> Job | None:
        """What a stored job asks for; the last spec that could be read, if the present one cannot."""
        status = self.memory(stored)
        version = stored["metadata"].get("generation"), stored["metadata"].get("annotations"), status.accepted
        known = self._read.get(uid(stored))
        if known is None or known[0] != version:
            known = self._read[uid(stored)] = version, read_stored(stored, status).job
        return known[1]

    def memory(self, stored: Object) -> Status:
        """What a stored job remembers."""
        return load_status(stored_status(stored))

    # Every write

    def _judge(self, key: Key, before: Object | None, after: Object | None, author: Author) -> None:
        match key.kind:
            case "pods":
                self._pod(before, after, author)
            case "nodes":
                self._node(key, after)
            case kind if kind in JOBS and after is not None:
                self._job(key, before, after, author)
            case kind if kind == LEASES and after is not None:
                self._intentions(key, before, after)
        if key.kind in OWNED and author.driver is not None:
            self._own(key, before, after, author)

    def _own(self, key: Key, before: Object | None, after: Object | None, author: Author) -> None:
        """A driver writes only what belongs to a job that it drives."""
        there = before or after
        assert there is not None
        whose = owner(there)
        assert whose, "a driver wrote what is no job's"
        job = self._by_uid(whose)
        if job is None or author.late:
            return
        memory = self.memory(job)
        named = memory.finished or memory.driver in ("", author.driver)
        assert named, f"a driver acted for {name(job)}, which {memory.driver} drives"

    def _by_uid(self, wanted: str) -> Object | None:
        return next((job for _, job in self.of(*JOBS) if uid(job) == wanted), None)

    # Pods, and what is true of them

    def _pod(self, before: Object | None, after: Object | None, author: Author) -> None:
        there = after or before
        assert there is not None
        if not owner(there):
            return
        truth, hands = self.truth[owner(there)], author.driver is None
        if hands and before is not None and not deleting(before) and (after is None or deleting(after)):
            truth.taken.add(uid(before))
        if after is None:
            return
        status = after.get("status") or {}
        was = phase(before) if before is not None else "Pending"
        disrupted = _condition(after, "DisruptionTarget") or status.get("reason") in ("Evicted", "NodeLost", "Shutdown")
        if disrupted or phase(after) == "Unknown":
            truth.taken.add(uid(after))
        elif phase(after) == "Failed" and was != "Failed" and not deleting(after):
            truth.failed.add(uid(after))
        if phase(after) == "Succeeded" and was != "Succeeded" and not deleting(after):
            truth.succeeded.add(replica(after))
        if _condition(after, "Ready"):
            truth.ready.add(replica(after))
        count = sum(one.get("restartCount") or 0 for one in status.get("containerStatuses") or ())
        truth.containers[uid(after)] = max(count, truth.containers.get(uid(after), 0))
        if before is None and not hands and not author.late:
            self._comes(after)

    def _comes(self, pod: Object) -> None:
        """A driver makes a pod: no pod of an earlier attempt that it would meet is there, and its time has come."""
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
        if job is not None and spec is not None and spec.depends is not None:
            up = [self._was_up(job, type_, owner(pod)) for type_ in spec.depends.on]
            assert any(up) if spec.depends.any else all(up), f"{replica(pod)} comes before {spec.depends.on} is up"

    def _was_up(self, job: Job, type_: str, owner_uid: str) -> bool:
        spec, truth = job.spec(type_), self.truth[owner_uid]
        there = {index for kind, index in truth.ready | truth.succeeded if kind == type_}
        return spec is None or len(there) >= min(spec.min_replicas, spec.replicas)

    def _node(self, key: Key, after: Object | None) -> None:
        if after is None or not is_ready(after):
            for _, pod in self.of("pods"):
                if pod["spec"].get("nodeName") == key.name and owner(pod):
                    self.truth[owner(pod)].taken.add(uid(pod))
        if after is not None:
            self._room[key.name] = max(self._room.get(key.name, Decimal(0)), cpus(after))

    # Jobs

    def _job(self, key: Key, before: Object | None, after: Object, author: Author) -> None:
        old = self.memory(before) if before is not None else Status()
        new = self.memory(after)
        if author.driver is None or new == old:
            return
        assert new.attempts.job >= old.attempts.job, f"attempt {old.attempts.job} became {new.attempts.job}"
        self._driver(old, new)
        self._budget(after, new)
        self._end(after, new)
        job = self.job(after)
        place = new.admission
        if place is not None and not place.by and job is not None:
            given = old.admission is None or sum(place.sizes.values()) > sum(old.admission.sizes.values())
            if given:
                self._given(key, after, author)

    def _driver(self, old: Status, new: Status) -> None:
        """A job changes hands only when its driver is dead."""
        if old.driver in ("", new.driver) or old.finished:
            return
        assert "/" in old.driver, f"{new.driver} took over from {old.driver}, which cannot die"
        key = Key(LEASES, *old.driver.split("/"))
        lease, silent = self.objects.get(key), self._now() - self._written.get(key, float("-inf"))
        spec = (lease or {}).get("spec") or {}
        duration = float(spec.get("leaseDurationSeconds") or 15)
        is_broken = lease is not None and BROKEN_BY in (lease["metadata"].get("annotations") or {})
        shared = lease is not None and (lease["metadata"].get("labels") or {}).get(names.DRIVER) != "inline"
        dead = is_broken or (silent >= FAST * duration and not shared)
        assert dead, f"{new.driver} took over from {old.driver}, whose lease was written {silent:.1f} s ago"

    def _budget(self, stored: Object, memory: Status) -> None:
        truth, job = self.truth[uid(stored)], self.job(stored)
        spent = sum(count for cause, count in memory.restarts.items() if cause not in FREE)
        disrupted, failed = memory.total_disruptions, len(truth.failed)
        kubelets = sum(truth.containers.values())
        assert spent <= failed + kubelets, f"{spent} restarts for {failed} pods that failed"
        assert spent + disrupted <= len(truth.failed | truth.taken) + kubelets, (
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
            case "BackoffLimitExceeded":
                limit, failures = job.run_policy.max_restarts, len(truth.failed) + sum(truth.containers.values())
                within = limit is None or failures <= limit
                assert not within, f"{failures} failures are within the limit of {limit}"
            case "MaxDisruptionsExceeded":
                assert truth.taken, "nothing was taken from it"
            case "PodFailed" | "TaskFailed":
                assert truth.failed or any(truth.containers.values()), "no pod of it has failed"
            case "PodEvicted" | "Preempted" | "NodeLost":
                assert truth.taken or memory.reason == "Preempted", "nothing was taken from it"
            case "DeadlineExceeded":
                assert job.run_policy.active_deadline is not None, "it has no deadline"

    def _succeeded(self, job: Job, memory: Status, truth: Truth) -> None:
        """It has succeeded by the rules of its dialect."""
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

    # Places

    def _given(self, key: Key, stored: Object, author: Author) -> None:
        """A job gets a place, or a larger one: that was written down before, and there is room for it."""
        if author.shares:
            assert uid(stored) in self._named(), f"{name(stored)} has a place that is not among the intended"
        if not author.sees_nodes:
            return
        others = [job for other, job in self.of(*JOBS) if other != key]
        promised = sum((self._holds(job) for job in (*others, stored)), Decimal(0))
        room = sum(self._room.values(), Decimal(0))
        assert promised <= room, f"places for {promised} CPUs were given away, and there are {room}"
        if self.strict:
            self._given_strictly([*others, stored], stored)

    def _given_strictly(self, jobs: list[Object], stored: Object) -> None:
        taken = sum((self._holds(job) for job in jobs), Decimal(0)) + self.others_pods() + self._leaving(jobs)
        room = sum((cpus(node) for _, node in self.of("nodes") if is_ready(node)), Decimal(0))
        assert taken <= room, f"with {name(stored)} {taken} CPUs are taken of {room}"
        queue = self.queue_of(stored)
        limit = self.nominal(queue)
        held = sum((self._holds(job) for job in jobs if self.queue_of(job) == queue), Decimal(0))
        assert limit is None or held <= limit, f"queue {queue} holds {held} CPUs of {limit}"
        namespace = stored["metadata"]["namespace"]
        most = self.most_pods(namespace)
        pods = sum(self._wanted(job) for job in jobs if job["metadata"]["namespace"] == namespace)
        assert most is None or pods <= most, f"{pods} pods are promised in {namespace}, which may have {most}"

    def _holds(self, stored: Object) -> Decimal:
        """The CPUs of the place that a job was given by tf-dist, without the replicas that are done."""
        return sum((count * cpu for count, cpu in self._parts(stored)), Decimal(0))

    def _wanted(self, stored: Object) -> int:
        return sum(count for count, _ in self._parts(stored))

    def _parts(self, stored: Object) -> Iterator[tuple[int, Decimal]]:
        memory, job = self.memory(stored), self.job(stored)
        place = memory.admission
        if place is None or place.by or job is None or memory.phase not in LIVE:
            return
        for spec in job.replica_specs:
            done = sum(1 for one in memory.succeeded if one.type == spec.type)
            yield max(0, place.sizes.get(spec.type, spec.replicas) - done), pod_cpus(spec)

    def _leaving(self, jobs: list[Object]) -> Decimal:
        """What pods take that belong to no place (any more)."""
        without = {uid(job) for job in jobs if not self._holds(job)}
        pods = (pod for _, pod in self.of("pods") if owner(pod) in without)
        return sum((_requested(pod["spec"]) for pod in pods if on_a_node(pod)), Decimal(0))

    def others_pods(self) -> Decimal:
        """What pods take that are no job's."""
        return sum(
            (_requested(pod["spec"]) for _, pod in self.of("pods") if not owner(pod) and on_a_node(pod)), Decimal(0)
        )

    def queue_of(self, stored: Object) -> str:
        """The queue that a job is in."""
        job = self.job(stored)
        return (job.scheduling.queue if job is not None else "") or "default"

    def nominal(self, queue: str) -> Decimal | None:
        """The CPUs of a queue that shares with no other; None: there is no limit that could be told so simply."""
        found = next((obj for key, obj in self.of("queues.tf-dist.dev") if key.name == queue), None)
        spec = (found or {}).get("spec") or {}
        said = ((spec.get("quotas") or {}).get("cpu") or {}).get("nominal")
        return None if said is None or spec.get("parent") else parse_quantity(str(said))

    def most_pods(self, namespace: str) -> int | None:
        """How many pods the ResourceQuotas of a namespace allow."""
        hard = (
            (obj.get("spec") or {}).get("hard") or {}
            for key, obj in self.of("resourcequotas")
            if key.namespace == namespace
        )
        said = [int(one["pods"]) for one in hard if "pods" in one]
        return min(said, default=None)

    # Intentions

    def _named(self) -> set[str]:
        return {one for _, lease in self.of(LEASES) for one in named_in(lease)}

    def _intentions(self, key: Key, before: Object | None, after: Object) -> None:
        """Who opens the list of intentions empties it only once nothing of it is in the air any more."""
        if before is None:
            return
        was, now = annotation(before, ARBITER), annotation(after, ARBITER)
        if was != now:
            versions = {uid(job): str(job["metadata"]["resourceVersion"]) for _, job in self.of(*JOBS)}
            self._opened[key] = now, {one: versions[one] for one in named_in(after) if one in versions}
            return
        arbiter, versions = self._opened.get(key, ("", {}))
        if arbiter != now or not versions:
            return
        for _, job in self.of(*JOBS):
            untouched = versions.get(uid(job)) == job["metadata"]["resourceVersion"]
            left = uid(job) in named_in(after)
            assert left or not untouched, f"{name(job)} is no longer intended, and what was sent may still arrive"
        del self._opened[key]

    # Who lives

    def check_rights(self, believers: Iterable[tuple[str, str]], dead: Iterable[str]) -> None:
        """``believers``: who believes to hold which Lease at this moment (process, Lease); ``dead``: whom anybody
        believes dead who would act on that now."""
        held: dict[str, list[str]] = defaultdict(list)
        for process, lease in believers:
            held[lease].append(process)
        for lease, processes in held.items():
            assert len(processes) == 1, f"{processes} hold {lease} at once"
        assert not (both := held.keys() & set(dead)), f"{sorted(both)} act, and others believe them dead"

    # At rest

    def unrest(self, *, readable: Callable[[Object], bool] = lambda _: True) -> list[str]:
        """Why it cannot be left at this, where all drivers are well: each job that is to get on, and does not."""
        found = [f"{name(job)}: {why}" for _, job in self.of(*JOBS) for why in self._unrest(job, readable(job))]
        jobs = {uid(job) for _, job in self.of(*JOBS)}
        found += [f"{key.name} is on its way out" for key, pod in self.of("pods") if deleting(pod)]
        found += [
            f"{key.name} belongs to nobody" for key, pod in self.of("pods") if owner(pod) and owner(pod) not in jobs
        ]
        return found + list(self._first_in_line())

    def _unrest(self, stored: Object, readable: bool) -> Iterator[str]:
        memory, job = self.memory(stored), self.job(stored)
        if deleting(stored):
            yield "is being deleted"
        if job is None or (memory.never_accepted and not readable):
            if self.pods_of(uid(stored)):
                yield "was never readable, and has pods"
            return
        if memory.obstacle:
            yield f"calls itself stalled: {memory.obstacle}"
        pods = self.pods_of(uid(stored))
        living = [pod for pod in pods if phase(pod) not in ENDED]
        if memory.finished:
            yield from self._clean(stored, job, memory, living)
        elif job.run_policy.suspend:
            if memory.phase is not Phase.ABORTED or living:
                yield f"is suspended, and {memory.phase} with {len(living)} pods"
        elif memory.phase is Phase.ABORTED:
            if memory.reason == "Suspended" or living:
                yield "was resumed, and is not"
        elif memory.phase not in (Phase.PENDING, Phase.RUNNING):
            yield f"is {memory.phase}"
        elif memory.admission is not None:
            yield from self._runs(stored, job, memory)
        elif living:
            yield f"has no place, and {len(living)} pods"

    def _clean(self, stored: Object, job: Job, memory: Status, living: list[Object]) -> Iterator[str]:
        policy, ttl = job.run_policy.clean_pods, job.run_policy.ttl
        keeps = policy is CleanPodPolicy.NONE and memory.reason not in CUT_SHORT
        if living and not keeps:
            yield f"is over ({memory.reason}), and {len(living)} pods run"
        if policy is CleanPodPolicy.ALL:
            left = [key.name for key, one in self.of("pods", "services") if owner(one) == uid(stored)]
            if left and job.services is ServiceStyle.PER_REPLICA:
                yield f"is over and cleaned up, but for {left}"
        if ttl is not None and (memory.completion_time or 0.0) + ttl + GRACE < self._now():
            yield f"was to be deleted {ttl:g} s after its end"

    def _runs(self, stored: Object, job: Job, memory: Status) -> Iterator[str]:
        place, limit = memory.admission, job.run_policy.active_deadline
        assert place is not None
        if limit is not None and memory.start_time is not None and memory.start_time + limit + GRACE < self._now():
            yield "is over its deadline"
        if memory.phase is not Phase.RUNNING:
            yield f"has a place, and is {memory.phase} ({memory.reason})"
        for spec in job.replica_specs:
            size = place.sizes.get(spec.type, spec.replicas)
            if size > spec.most:
                yield f"has a place for {size} {spec.type}, and asks for {spec.most} at most"
            done = {one.index for one in memory.succeeded if one.type == spec.type}
            there = {
                replica(pod)[1] for pod in self.pods_of(uid(stored)) if type_of(pod) == spec.type and not deleting(pod)
            }
            wanted = set(range(min(size, spec.most)))
            if wanted - done - there or there - wanted:
                yield f"has {spec.type} {sorted(there)} of {sorted(wanted)}"
        limit = job.run_policy.max_restarts
        truth = self.truth[uid(stored)]
        if limit is not None and job.run_policy.container_restarts_count:
            spent = memory.charged_restarts + sum(truth.containers.values())
            if spent > limit:
                yield f"was restarted {spent} times, and {limit} are allowed"
        waiting = [name(pod) for pod in self.pods_of(uid(stored)) if phase(pod) == "Pending"]
        if waiting:
            yield f"{waiting} have not started"

    def _first_in_line(self) -> Iterator[str]:
        """Of those who wait, the one whose turn is next lacks room or quota, in truth."""
        lines: dict[str, list[tuple[tuple[float, ...], Object]]] = defaultdict(list)
        for _, stored in self.of(*JOBS):
            memory, job = self.memory(stored), self.job(stored)
            if job is None or memory.finished or memory.admission is not None or job.run_policy.suspend:
                continue
            if memory.phase is not Phase.PENDING or memory.not_before > self._now() or memory.unconfirmed:
                continue
            rank = (-self._priority(job), memory.created or 0.0)
            lines[self.queue_of(stored)].append((rank, stored))
        for line in lines.values():
            _, first = min(line, key=lambda one: (one[0], name(one[1])))
            if (why := self._fits(first)) and len(lines) == 1:
                yield f"{name(first)} waits ({self.memory(first).reason}: {self.memory(first).message}) beside {why}"

    def _priority(self, job: Job) -> float:
        classes = {key.name: obj.get("value", 0) for key, obj in self.of("priorityclasses.scheduling.k8s.io")}
        return float(classes.get(job.scheduling.priority_class, 0))

    def _fits(self, stored: Object) -> str:
        """In which room a job that waits could start ("": in none)."""
        job = self.job(stored)
        assert job is not None
        need = sum((spec.replicas * pod_cpus(spec) for spec in job.replica_specs), Decimal(0))
        jobs = [other for _, other in self.of(*JOBS)]
        free = sum((self._free(node, key.name) for key, node in self.of("nodes") if is_ready(node)), Decimal(0))
        to_come = sum((self._to_come(other) for other in jobs), Decimal(0))
        queue = self.queue_of(stored)
        limit = self.nominal(queue)
        held = sum((self._holds(other) for other in jobs if self.queue_of(other) == queue), Decimal(0))
        if limit is not None and held + need > limit:
            return ""
        namespace = stored["metadata"]["namespace"]
        most = self.most_pods(namespace)
        pods = sum(1 for key, pod in self.of("pods") if key.namespace == namespace and phase(pod) not in ENDED)
        if most is not None and pods + sum(spec.replicas for spec in job.replica_specs) > most:
            return ""
        return f"{free - to_come} CPUs that are free, of which it needs {need}" if free - to_come >= need else ""

    def _free(self, node: Object, called: str) -> Decimal:
        """Whole CPUs of a node that no pod takes (pods ask for whole ones)."""
        pods = (pod for _, pod in self.of("pods") if pod["spec"].get("nodeName") == called and phase(pod) not in ENDED)
        return max(Decimal(0), cpus(node) - sum((_requested(pod["spec"]) for pod in pods), Decimal(0)))

    def _to_come(self, stored: Object) -> Decimal:
        there = [pod for pod in self.pods_of(uid(stored)) if on_a_node(pod)]
        return max(Decimal(0), self._holds(stored) - sum((_requested(pod["spec"]) for pod in there), Decimal(0)))


# Reading objects


def name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def uid(obj: Object) -> str:
    return str(obj["metadata"]["uid"])


def owner(obj: Object) -> str:
    """The uid of the job that controls it; "": none does."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return next(
        (str(one["uid"]) for one in owners if one.get("controller") and one.get("kind") in ("TFJob", "Job")), ""
    )


def deleting(obj: Object) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def type_of(pod: Object) -> str:
    return str((pod["metadata"].get("labels") or {}).get(names.REPLICA_TYPE, ""))


def replica(pod: Object) -> tuple[str, int]:
    return type_of(pod), int((pod["metadata"].get("labels") or {}).get(names.REPLICA_INDEX, 0))


def attempt(pod: Object) -> list[str]:
    return str((pod["metadata"].get("labels") or {}).get(names.ATTEMPT, "")).split(".")


def annotation(obj: Object, key: str) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(key, ""))


def named_in(lease: Object) -> set[str]:
    """The uids of the jobs that a list of intentions names."""
    return {str(row[3]) for row in json.loads(annotation(lease, ADMITTING) or "[]")}


def on_a_node(pod: Object) -> bool:
    return bool(pod["spec"].get("nodeName")) and phase(pod) not in ENDED


def is_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = all(one["status"] == "True" for one in conditions if one["type"] == "Ready")
    return ready and not (node.get("spec") or {}).get("unschedulable")


def cpus(node: Object) -> Decimal:
    return parse_quantity(str(((node.get("status") or {}).get("allocatable") or {}).get("cpu", "0")))


def pod_cpus(spec: ReplicaSpec) -> Decimal:
    return _requested(spec.template.get("spec") or {})


def _requested(spec: Mapping[str, Any]) -> Decimal:
    requests = (((one.get("resources") or {}).get("requests") or {}) for one in spec.get("containers") or ())
    return sum((parse_quantity(str(one.get("cpu", "0"))) for one in requests), Decimal(0))


def _condition(obj: Object, type_: str) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == type_ and one.get("status") == "True" for one in conditions)

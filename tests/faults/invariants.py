"""Invariants of every write under every fault: each change of the store is judged at the moment when it happens."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Final

from tf_dist.controller.gang_admission.pending_admissions import LEADER_ANNOTATION

from tests.faults.record import (
    ENDED,
    JOBS,
    LEASES,
    OWNED,
    TERMINAL,
    Author,
    Record,
    Truth,
    annotation,
    attempt,
    cpus,
    is_ready,
    name,
    named_in,
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
from tf_dist.controller.leases.lease import BROKEN_BY, TAKEOVER_DELAY
from tf_dist.core.api import names
from tf_dist.core.api.job import Job
from tf_dist.core.api.status import UNCHARGED_REASONS, Admission, Phase, Status

# Of a Lease's duration, as a clock that is as fast as may be measures it.
FAST: Final = 0.8
# Seconds within which drivers that are well have heard of something.
LONG: Final = 60.0
# Seconds that a verdict takes, from the decision to the status: it may have been made before a node was given up.
UNDER_WAY: Final = 5.0
# Seconds for which a Lease that is held again after its driver was dead is not used: until then others may go on to act
# on that. (What they wait by their own clocks is longer, but for those that are fast.)
TAKING: Final = TAKEOVER_DELAY / 1.03


class Invariants(Record):
    """``broken`` is what was wrong so far, in words. ``strict``: drivers see everything as it is by now."""

    def __init__(self, now: Callable[[], float], author: Callable[[], Author]) -> None:
        super().__init__(now, author)
        self.broken: list[str] = []
        self.strict = False
        self._placed: dict[str, float] = {}
        self._asked: dict[str, dict[str, int]] = {}
        self._lingering: dict[str, float] = {}
        self._dead_at: dict[str, float] = {}
        self._decides: tuple[str, float] = ("", 0.0)
        self._unpinned: dict[str, float] = {}  # when a job was set free from a node
        self._came: dict[str, float] = {}  # when a process wrote for the first time
        self._unseen: set[str] = set()
        self._room: dict[str, Decimal] = {}
        self._opened: dict[Key, tuple[str, dict[str, str]]] = {}

    def restore(self, objects: Mapping[Key, Object], saved: Mapping[str, Truth]) -> None:
        super().restore(objects, saved)
        self._opened.clear()
        self._placed.clear()
        self._lingering.clear()
        self._decides = "", self.now()

    def wrote(self, key: Key, before: Object | None, after: Object | None, author: Author) -> None:
        self._came.setdefault(author.process, self.now())
        try:
            self._judge(key, before, after, author)
        except AssertionError as error:
            self.broken.append(f"{error} ({author.driver or 'hands'} at {self.now():.1f}: {key.kind} {key.name})")

    # Every write

    def _judge(self, key: Key, before: Object | None, after: Object | None, author: Author) -> None:
        match key.kind:
            case "pods" if before is None and after is not None and author.driver is not None and not author.late:
                self._comes(after)
            case "nodes" if after is not None:
                self._room[key.name] = max(self._room.get(key.name, Decimal(0)), cpus(after))
            case kind if kind in JOBS and after is not None:
                self._job(key, before, after, author)
            case kind if kind == LEASES and after is not None:
                self._intentions(key, before, after)
        if author.driver is None or author.late:
            return
        if key.kind in (*OWNED, *JOBS):
            self._holder(author)
        if key.kind in OWNED:
            self._own(before, after, author)

    def _holder(self, author: Author) -> None:
        """A driver writes only while its Lease is its own."""
        lease = self.lease(author.driver)[0] if author.process and author.driver and "/" in author.driver else None
        holder = ((lease or {}).get("spec") or {}).get("holderIdentity", author.process)
        assert lease is None or holder == author.process, f"{author.process} wrote, and {holder} holds its lease"

    def _own(self, before: Object | None, after: Object | None, author: Author) -> None:
        """A driver writes only what belongs to a job that it drives."""
        there = before or after
        assert there is not None
        whose = owner(there)
        assert whose, "a driver wrote what is no job's"
        job = self._by_uid(whose)
        if job is None:
            return
        memory = self.memory(job)
        named = memory.finished or memory.driver in ("", author.driver)
        assert named, f"a driver acted for {name(job)}, which {memory.driver} drives"

    def _by_uid(self, wanted: str) -> Object | None:
        return next((job for _, job in self.of(*JOBS) if uid(job) == wanted), None)

    # Pods

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

    # Jobs

    def _job(self, key: Key, before: Object | None, after: Object, author: Author) -> None:
        old = self.memory(before) if before is not None else Status()
        new = self.memory(after)
        if author.driver is None or new == old:
            return
        if self._on(old.admission) - self._on(new.admission) and new.admission is not None:
            self._unpinned[uid(after)] = self.now()
        assert new.attempts.job >= old.attempts.job, f"attempt {old.attempts.job} became {new.attempts.job}"
        self._driver(old, new)
        self._budget(after, new)
        self._end(after, new)
        job = self.job(after)
        place = new.admission
        if place is None:
            self._placed.pop(uid(after), None)
        if place is not None and not place.by and job is not None:
            given = old.admission is None or sum(place.granted.values()) > sum(old.admission.granted.values())
            if old.admission is None or place.granted != old.admission.granted:
                self._placed[uid(after)] = self.now()
            self._no_smaller_than_it_says(after, job, place)
            if given:
                self._given(key, after, author)
            if author.sees_nodes:
                self._on_nodes(key, after, old.admission, author)

    def _no_smaller_than_it_says(self, stored: Object, job: Job, place: Admission) -> None:
        """A minimum is no size: only the workers of an elastic job may be fewer than its document asked for."""
        asked: dict[str, int] = self._asked.setdefault(uid(stored), {})
        for spec in job.replica_specs:
            # It may have been made larger since it was admitted.
            asked[spec.type] = min(asked.get(spec.type, spec.replicas), spec.replicas)
            if spec.min_replicas == spec.replicas and spec.type in place.sizes:
                size = place.sizes[spec.type]
                assert size >= asked[spec.type], f"{size} {spec.type} of {spec.replicas}, and it is not elastic"

    def _driver(self, old: Status, new: Status) -> None:
        """A job changes hands only when its driver is dead."""
        if old.driver in ("", new.driver) or old.finished:
            return
        assert "/" in old.driver, f"{new.driver} took over from {old.driver}, which cannot die"
        lease, silent = self.lease(old.driver)
        dead = self._is_dead(lease, silent) or self.now() - self._dead_at.get(old.driver, float("-inf")) < TAKING
        assert dead, f"{new.driver} took over from {old.driver}, whose lease was written {silent:.1f} s ago"

    def _is_dead(self, lease: Object | None, silent: float) -> bool:
        """Whether a driver is dead that has this Lease, which was not written for so many seconds."""
        spec = (lease or {}).get("spec") or {}
        duration = float(spec.get("leaseDurationSeconds") or 15)
        if lease is not None and (lease["metadata"].get("labels") or {}).get(names.DRIVER) != "inline":
            return bool(annotation(lease, BROKEN_BY))
        return silent >= FAST * duration

    def _budget(self, stored: Object, memory: Status) -> None:
        truth, job = self.truth[uid(stored)], self.job(stored)
        spent = sum(count for cause, count in memory.restarts.items() if cause not in UNCHARGED_REASONS)
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
            case "TaskCompleted":
                assert memory.phase is Phase.COMPLETED, end
                assert truth.succeeded, "no replica of it has succeeded"
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
            case _:
                raise AssertionError(f"nothing explains {end}")

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
        if self.strict and not author.late:
            self._may_give(stored, author)
        driven = not author.driver or self.memory(stored).driver or annotation(stored, names.DRIVER)
        assert driven, f"{name(stored)} has a place and no driver"
        if author.shares:
            assert uid(stored) in self._named(), f"{name(stored)} has a place that is not among the intended"
        if not author.sees_nodes:
            self._unseen.add(uid(stored))  # what is free it cannot know
            return
        self._unseen.discard(uid(stored))
        others = [job for other, job in self.of(*JOBS) if other != key and other.kind not in author.unserved]
        promised = sum((self.holds(job) for job in (*others, stored) if uid(job) not in self._unseen), Decimal(0))
        room = sum(self._room.values(), Decimal(0))
        assert promised <= room, f"places for {promised} CPUs were given away, and there are {room}"
        if self.strict:
            self._given_strictly([*others, stored], stored)

    def _on_nodes(self, key: Key, stored: Object, before: Admission | None, author: Author) -> None:
        """No node is promised more than it ever had, where a job now gets more of it."""
        mine, given = self.on_nodes(stored, again=True), self._on(before)
        more = {node for node, count in self._on(self.memory(stored).admission).items() if count > given[node]}
        seen = [job for other, job in self.of(*JOBS) if other != key and other.kind not in author.unserved]
        others = [self.on_nodes(job, again=False) for job in seen]
        for node in sorted(more & self._room.keys()):
            promised = sum((one.get(node, Decimal(0)) for one in others), mine.get(node, Decimal(0)))
            room = self._room[node]
            assert promised <= room, f"places for {promised} CPUs of {node} were given away, and it has {room}"

    def _on(self, place: Admission | None) -> Counter[str]:
        """How many pods a place has on each node."""
        found: Counter[str] = Counter()
        for nodes in place.placement.values() if place is not None else ():
            found.update(nodes)
        return found

    def _may_give(self, stored: Object, author: Author) -> None:
        """Where one decides for all, no other does; and a place is for a job that has a driver."""
        process, since = self._decides
        lone = process in ("", author.arbiter) or self.now() - since < LONG
        assert lone, f"{author.driver} gave a place away, and {process} decides for all"
        driver = self.memory(stored).driver
        if author.process and "/" in driver:
            _, silent = self.lease(driver)
            # Who decides believes only what it has seen itself: a Lease that is gone, or silent, for some time.
            dead = min(silent, self.now() - self._came[author.process]) >= LONG
            assert not dead, f"{name(stored)} got a place, and its driver {driver} is dead"

    def _given_strictly(self, jobs: list[Object], stored: Object) -> None:
        seen = [job for job in jobs if uid(job) not in self._unseen]
        unseen = (pod for job in jobs if job not in seen for pod in self.pods_of(uid(job)) if on_a_node(pod))
        taken = sum((self.holds(job) for job in seen), Decimal(0)) + self.others_pods() + self._leaving(jobs)
        taken += sum((requested(pod["spec"]) for pod in unseen), Decimal(0))
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
        """The CPUs of pods to come that keep nothing from others: those that a node is to have which takes none now
        (it was lost), or was to have a moment ago, and those for which no node has room, wherever they may come."""
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

    def _leaving(self, jobs: list[Object]) -> Decimal:
        """What pods take that belong to no place (any more)."""
        without = {uid(job) for job in jobs if not self.holds(job)}
        pods = (pod for _, pod in self.of("pods") if owner(pod) in without)
        return sum((requested(pod["spec"]) for pod in pods if on_a_node(pod)), Decimal(0))

    # Intentions

    def _named(self) -> set[str]:
        return {one for _, lease in self.of(LEASES) for one in named_in(lease)}

    def _intentions(self, key: Key, before: Object | None, after: Object) -> None:
        """Who opens the list of intentions empties it only once nothing of it is in the air any more."""
        if key.name == "tf-dist-arbiter":
            holder = str((after.get("spec") or {}).get("holderIdentity") or "")
            lapsed = self.now() - self.written.get(key, float("-inf")) > FAST * 15
            if holder != self._decides[0] or lapsed:
                self._decides = holder, self.now()
        if before is None:
            return
        driver = f"{key.namespace}/{key.name}"
        if self._is_dead(before, self.lease(driver)[1]):
            self._dead_at[driver] = self.now()
        was, now = annotation(before, LEADER_ANNOTATION), annotation(after, LEADER_ANNOTATION)
        if was != now:
            versions = {uid(job): str(job["metadata"]["resourceVersion"]) for _, job in self.of(*JOBS)}
            self._opened[key] = now, {one: versions[one] for one in named_in(after) if one in versions}
            return
        # The list is written only when there is something new to be named: what is over leaves it then. One that is
        # named anew is to get a larger place, or to give some of it up: that may be the first write since it got that.
        named = set(named_in(before)).intersection(named_in(after))
        long_since = {one for one in named if self.now() - self._placed.get(one, self.now()) > LONG}
        old = {one: self._lingering.get(one, self.now()) for one in long_since if not self._may_grow(one)}
        self._lingering = old
        left = sorted(one for one, since in old.items() if self.now() - since > LONG)
        assert not (self.strict and left), f"{left} are still intended, long after they have their places"
        arbiter, versions = self._opened.get(key, ("", {}))
        if arbiter != now or not versions:
            return
        for _, job in self.of(*JOBS):
            untouched = versions.get(uid(job)) == job["metadata"]["resourceVersion"]
            left = uid(job) in named_in(after)
            assert left or not untouched, f"{name(job)} is no longer intended, and what was sent may still arrive"
        del self._opened[key]

    def _may_grow(self, wanted: str) -> bool:
        stored = self._by_uid(wanted)
        job = self.job(stored) if stored is not None else None
        if stored is None or job is None or (place := self.memory(stored).admission) is None:
            return False
        return any(place.granted.get(spec.type, spec.replicas) < spec.most for spec in job.replica_specs)

    # Who lives

    def check_rights(self, believers: Iterable[tuple[str, str]], dead: Iterable[str]) -> None:
        """``believers``: who believes to hold which Lease at this moment (process, Lease); ``dead``: whom any client
        believes dead who would act on that now."""
        held: dict[str, list[str]] = defaultdict(list)
        for process, lease in believers:
            held[lease].append(process)
        for lease, processes in held.items():
            assert len(processes) == 1, f"{processes} hold {lease} at once"
        assert not (both := held.keys() & set(dead)), f"{sorted(both)} act, and others believe them dead"

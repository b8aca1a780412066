"""Invariants of every moment, under every fault. They use the store, the true time, and the truth about pods.

``told`` checks every write of a controller when the server executes it. ``check`` checks the whole state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.faults.documents import TEAM
from tests.faults.puppet import Puppet
from tests.faults.record import HANDS, JOBS, KEYS, Author, kind_of_owner, owner
from tests.faults.rest import Rest, Unrest
from tests.faults.site import Site, alive, deleting, label, memory_of, name, uid
from tests.faults.wire import Executed
from tf_dist.cluster.api import JOB_KINDS, LEASES, Object, Resource
from tf_dist.cluster.lease import LEASE_DURATION, LeaseRecord
from tf_dist.core.model import names
from tf_dist.errors import AlreadyExists

# Seconds after which healthy controllers have seen everything.
_CALM = 25.0
# Seconds without a leader that are allowed if all are healthy, because a leader may have been killed.
_LEADERLESS = 20.0
_LOOK_EVERY = 5.0
# Seconds within which controllers notice a restore of etcd: when their watches end, and after eight lists.
_SET_BACK = 600.0
_TERMINAL = ("Completed", "Failed", "Terminated")
_STATUSES = frozenset({"tfjobs/status", "jobs/status"})
_OWNED = frozenset({"pods", "services", "configmaps", "networkpolicies"}) | _STATUSES


class Broken(AssertionError):
    """A rule is violated."""


class Rules:
    """The rules of a site and its controllers."""

    def __init__(self, site: Site, puppets: list[Puppet], defects: list[str]) -> None:
        self.site = site
        self._defects = defects
        self._puppets = puppets
        # Whether requests may arrive after their sender has given up.
        self.late = False
        # The time of the last disturbance of the cluster, or None while disturbances continue.
        self.calm_since: float | None = None
        self._rest = Rest(site.invariants)
        self._led: dict[Resource, Puppet] = {}
        self._since: dict[tuple[str, str], float] = {}
        self._looked = 0.0
        self._restored = float("-inf")

    def _fail(self, text: str) -> None:
        raise Broken("\n".join([text, *self.site.log[-120:]]))

    # Every write

    def leads(self, process: str) -> frozenset[str]:
        """The kinds of jobs that a process believes to lead now."""
        return frozenset(KEYS[kind] for kind in self._puppet(process).leadership.kinds())

    def acting(self, process: str | None, led: frozenset[str], late: bool) -> None:
        """Set the author of the next write, with the kinds that it ``led`` at the sending; or end the write (None)."""
        site = self.site
        if process is None:
            site.author = HANDS
            return
        puppet = self._puppet(process)
        site.invariants.strict = self._well() and site.simulation.now - puppet.process.continued > _CALM
        site.author = Author(
            puppet.process.name,
            leases=puppet.leases,
            kinds=led,
            late=late,
            sees_nodes=puppet.sees_nodes,
            unserved=frozenset(
                kind for kind in JOBS if puppet.network.unserved.get(kind.partition(".")[0], 0.0) > site.simulation.now
            ),
        )

    def told(self, write: Executed) -> None:
        """A write of a controller has reached the server."""
        call, site = write.call, self.site
        ok = write.error is None
        if call.resource != "leases" or not ok or self._changes_hands(write):
            site.note(_line(write))
        if call.resource == "leases":
            site.counts["lease won"] += ok and self._changes_hands(write)
            return
        if call.resource == "pods" and call.verb == "create" and isinstance(write.error, AlreadyExists):
            site.counts["pod there already"] += 1
        if call.resource in _OWNED and not write.late:
            self._right(write)
        if call.resource in _STATUSES and ok and write.before is not None and write.after is not None:
            self._status(write.process, write.before, write.after)

    def _well(self) -> bool:
        """Whether all controllers have up-to-date caches by now."""
        now, calm = self.site.simulation.now, self.calm_since
        return calm is not None and now - calm > _CALM and now - self._restored > _SET_BACK

    def _puppet(self, process: str) -> Puppet:
        return next(puppet for puppet in self._puppets if puppet.process.name == process)

    def _changes_hands(self, write: Executed) -> bool:
        """Whether a write changes the holder of a Lease."""
        before, after = (LeaseRecord.of(one or {}).holder for one in (write.before, write.after))
        return before != after

    def restored(self) -> None:
        """etcd has been restored."""
        self._restored = self.site.simulation.now

    def _right(self, write: Executed) -> None:
        """A process that does not lead sends no writes, not even writes that are refused. The record checks only
        executed writes."""
        puppet = self._puppet(write.process)
        about = write.body if write.call.verb == "create" else write.before or write.body
        if write.call.resource in _STATUSES:
            kind = next(kind for kind in JOBS if kind.startswith(write.call.resource.partition("/")[0]))
        elif "metadata" in about and owner(about):
            kind = kind_of_owner(about)
        else:
            return
        author = Author(puppet.process.name, leases=puppet.leases)
        try:
            self.site.invariants.leads(author, kind, write.call.namespace)
        except AssertionError as error:
            self.site.invariants.broken.append(f"{error}: {write.call}")  # not raised, because a thread may catch it

    def _status(self, process: str, before: Object, after: Object) -> None:
        old, new, counts = memory_of(before), memory_of(after), self.site.counts
        if old.get("phase") != new.get("phase"):
            counts[str(new.get("phase"))] += 1
            if new.get("phase") in _TERMINAL:
                counts[f"ended {new.get('reason')}"] += 1
        for cause, number in (new.get("restarts") or {}).items():
            more = number - (old.get("restarts") or {}).get(cause, 0)
            if more > 0:
                counts[f"restart {cause}"] += more
        was, given = old.get("admission"), new.get("admission")
        if was and given and was.get("sizes") != given.get("sizes"):
            counts["resized"] += 1
        if given and given.get("started"):
            counts["started in part"] += 1
        if was and given and was.get("started") and was.get("started") != given.get("started"):
            counts["more of it started"] += 1
        if was and not given and new.get("phase") not in _TERMINAL:
            counts["place given back"] += 1
        if given and (
            not was or was.get("sizes") != given.get("sizes") or was.get("placement") != given.get("placement")
        ):
            counts["admitted"] += 1

    # The whole state

    def check(self) -> None:
        """Check everything that is visible at one moment."""
        self._judged()
        pods = self.site.pods()
        jobs = self.site.jobs()
        self._one_pod_each(pods)
        self._every_pod_has_an_owner(pods, jobs)
        self._unrest()

    def _judged(self) -> None:
        """Fail on violations by writes, and on two leaders of a kind."""
        if self._defects:
            self._fail(self._defects[0])
        if self.site.invariants.broken:
            self._fail("; ".join(self.site.invariants.broken))
        for kind in JOB_KINDS:
            leaders = self._leaders(kind)
            if len(leaders) > 1 and not self.site.invariants.excused(KEYS[kind], TEAM):
                self._fail(f"{[one.process.name for one in leaders]} lead the {kind.kind}s at once")
            if leaders and self._led.get(kind) is not leaders[0]:
                before = self._led.get(kind)
                self.site.counts["leaders"] += 1
                if before is not None:
                    self.site.counts[f"{before.scope.name} to {leaders[0].scope.name}"] += 1
                self._led[kind] = leaders[0]

    def _leaders(self, kind: Resource) -> list[Puppet]:
        """The processes that now consider themselves leaders."""
        return [one for one in self._puppets if not one.dead and one.leadership.remaining(kind) > 0]

    def _one_pod_each(self, pods: list[Object]) -> None:
        if self.late:
            return  # a late request may create a pod of an old attempt, which is then deleted
        attempts: dict[str, set[str]] = defaultdict(set)
        for pod in filter(owner, alive(pods)):
            attempts[owner(pod)].add(label(pod, names.ATTEMPT).partition(".")[0])
        if any(len(found) > 1 for found in attempts.values()):
            self._fail(f"attempts of one job overlap: {[(name(p), label(p, names.ATTEMPT)) for p in alive(pods)]}")

    def _every_pod_has_an_owner(self, pods: list[Object], jobs: list[Object]) -> None:
        known = {uid(job) for job in jobs}
        orphans = [name(pod) for pod in pods if owner(pod) not in {"", *known} and not deleting(pod)]
        if orphans:
            self._fail(f"pods without a job: {orphans}")

    # Rest

    def _unrest(self) -> None:
        """Fail if a state that must not last does last while the cluster is undisturbed."""
        now = self.site.simulation.now
        if not self._well():
            self._since.clear()
            return
        if now < self._looked + _LOOK_EVERY:
            return
        self._looked = now
        found = {
            (one.who, one.what): one for one in (*self._rest.unrest(), *self._leaderless(), *self._idle_controllers())
        }
        for key in self._since.keys() - found.keys():
            del self._since[key]
        for key, one in found.items():
            if now - self._since.setdefault(key, now) > one.patience:
                self._fail(f"{one}, for {now - self._since[key]:.0f} s")

    def begin_anew(self) -> None:
        """Measure how long states last from now on, because another leader has started."""
        self._since.clear()

    def _leaderless(self) -> Iterator[Unrest]:
        """Candidates for kinds that have no leader."""
        for kind in JOB_KINDS if self.site.has_namespace() else ():
            if not self._leaders(kind):
                for one in self._puppets:
                    if kind in one.kinds and not (one.dead or one.leaving or one.process.stopped):
                        text = f"does not lead the {kind.kind}s, and nobody does"
                        # Three successive requests precede a write. Candidates also wait for the Lease that a killed
                        # host has left in a namespace.
                        patience = _LEADERLESS + 15 * (one.network.latency + one.network.lag)
                        patience += LEASE_DURATION * bool(self.site.memory.list(LEASES, TEAM).items)
                        yield Unrest(one.process.name, f"{kind.kind}s have no leader", text, patience)

    def _idle_controllers(self) -> Iterator[Unrest]:
        """Hosts that do not lead, and still watch all objects of their namespace."""
        for one in self._puppets:
            idle = one.host is not None and one.host.controller is not None and not one.leadership.kinds()
            if idle and not (one.dead or one.leaving or one.process.stopped):
                yield Unrest(one.process.name, "idle", "does not lead, and keeps its controller")


def _line(write: Executed) -> str:
    """A line about a write of a controller, with the contents of a status."""
    call, memory = write.call, {}
    if call.resource in _STATUSES and isinstance(write.body, dict):
        memory = memory_of(write.body)
    keys = ("phase", "reason", "restarts", "attempts", "admission")
    said = {key: memory[key] for key in keys if memory.get(key)}
    outcome = "ok" if write.error is None else f"{type(write.error).__name__}"
    late = " late" if write.late else ""
    return f"{write.process} {call.verb} {call.resource} {call.name} -> {outcome}{late} {said or ''}"

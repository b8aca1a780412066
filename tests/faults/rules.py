"""Invariants of every moment, under every fault: judged by the store, by true time, and by what the hands know.

``told`` judges every write of a driver as the server carries it out; ``check`` looks at everything there is.
"""

from __future__ import annotations

from collections import defaultdict

from tests.faults.puppet import Puppet, Reach
from tests.faults.record import HANDS, JOBS, Author, owner
from tests.faults.rest import Rest
from tests.faults.site import Site, alive, deleting, label, memory_of, name, uid
from tests.faults.wire import Executed
from tf_dist.cluster.api import LEASES, Object
from tf_dist.controller.leases import lease
from tf_dist.core.api import names
from tf_dist.errors import AlreadyExists

# Seconds after which drivers that are well have seen everything.
_CALM = 25.0
_LOOK_EVERY = 5.0
# Seconds within which they have noticed that etcd was set back: when their watches end, and after eight lists.
_SET_BACK = 600.0
_TERMINAL = ("Completed", "Failed", "Terminated")
_STATUSES = frozenset({"tfjobs/status", "jobs/status"})
_OWNED = frozenset({"pods", "services", "configmaps", "networkpolicies"}) | _STATUSES


class Broken(AssertionError):
    """A rule does not hold."""


class Rules:
    """The rules over one site and its drivers."""

    def __init__(self, site: Site, puppets: list[Puppet]) -> None:
        self.site = site
        self._puppets = puppets
        # Whether requests may arrive when their sender has given them up.
        self.late = False
        # Since when nothing has been done to the cluster (None: something is going on).
        self.calm_since: float | None = None
        self._renewed: dict[str, tuple[str, float, float]] = {}
        self._rest = Rest(site.invariants)
        self._since: dict[tuple[str, str], float] = {}
        self._looked = 0.0
        self._restored = float("-inf")

    def _fail(self, text: str) -> None:
        raise Broken("\n".join([text, *self.site.log[-120:]]))

    # Every write

    def acting(self, process: str | None, late: bool) -> None:
        """Whose write comes next (None: it was made)."""
        site = self.site
        if process is None:
            site.author = HANDS
            return
        puppet = self._puppet(process)
        site.invariants.strict = self._well()
        site.author = Author(
            puppet.leadership.ref,
            puppet.identity,
            puppet.arbiter.identity if puppet.arbiter is not None else "",
            late,
            shares=puppet.reach in (Reach.CLUSTER, Reach.NAMESPACE),
            sees_nodes=puppet.driver.informers.sees_nodes,
            unserved=frozenset(
                kind for kind in JOBS if puppet.network.unserved.get(kind.partition(".")[0], 0.0) > site.simulation.now
            ),
        )

    def told(self, write: Executed) -> None:
        """A driver's write has come to the server."""
        call, site = write.call, self.site
        ok = write.error is None
        if call.resource != "leases" or not ok or self._changes_hands(write):
            site.note(_line(write))
        if call.resource == "leases":
            self._lease(write, ok)
            return
        if call.resource == "pods" and call.verb == "create" and isinstance(write.error, AlreadyExists):
            site.counts["pod there already"] += 1
        if call.resource in _OWNED and not write.late:
            self._right(write)
        if call.resource in _STATUSES and ok and write.before is not None and write.after is not None:
            self._status(write.process, write.before, write.after)

    def _well(self) -> bool:
        """Whether drivers see everything as it is by now."""
        now, calm = self.site.simulation.now, self.calm_since
        return calm is not None and now - calm > _CALM and now - self._restored > _SET_BACK

    def _puppet(self, process: str) -> Puppet:
        return next(puppet for puppet in self._puppets if puppet.process.name == process)

    def _lease(self, write: Executed, ok: bool) -> None:
        """Who holds which Lease, and since when it was not renewed, in true time."""
        if not ok or write.after is None:
            if ok and write.call.verb == "delete":
                self._renewed.pop(write.call.name, None)
            return
        stored, now = write.after, self.site.simulation.now
        spec = stored.get("spec") or {}
        holder, called = str(spec.get("holderIdentity") or ""), name(stored)
        before = self._renewed.get(called, ("", 0.0, 0.0))[0]
        if holder and before != holder:
            self.site.counts["lease won"] += 1
            if before:
                self.site.counts["lease taken over"] += 1
        duration = float(spec.get("leaseDurationSeconds") or lease.LEASE_DURATION)
        self._renewed[called] = (holder, now, duration)

    def _changes_hands(self, write: Executed) -> bool:
        """Whether a write to a Lease is more than its renewal."""
        holders = [((one or {}).get("spec") or {}).get("holderIdentity") for one in (write.before, write.after)]
        return holders[0] != holders[1] or not holders[0]

    def restored(self) -> None:
        """etcd has been set back: who holds which Lease is what it says again, for the time that drivers wait."""
        self._restored = self.site.simulation.now
        for stored in self.site.memory.list(LEASES).items:
            spec = stored.get("spec") or {}
            duration = float(spec.get("leaseDurationSeconds") or lease.LEASE_DURATION)
            holder = str(spec.get("holderIdentity") or "")
            self._renewed[name(stored)] = (holder, self.site.simulation.now, duration)

    def holds(self, puppet: Puppet) -> bool:
        """Whether the server would say that a driver's Lease is its own at this moment of true time."""
        if puppet.elector is None:
            return True
        holder, renewed, duration = self._renewed.get(puppet.elector.ref.name, ("", 0.0, 0.0))
        return holder == puppet.identity and self.site.simulation.now <= renewed + duration

    def _right(self, write: Executed) -> None:
        """No write, not even one that is refused, once the Lease has run out; who holds it, the record judges."""
        puppet = self._puppet(write.process)
        if not self.holds(puppet):
            held = puppet.elector and self._renewed.get(puppet.elector.ref.name)
            self._fail(f"{write.process} did {write.call} while its lease was {held}")

    def _status(self, process: str, before: Object, after: Object) -> None:
        old, new, counts = memory_of(before), memory_of(after), self.site.counts
        if old.get("driver") and new.get("driver") != old["driver"]:
            counts["taken over"] += 1
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

    # Everything

    def check(self) -> None:
        """All that can be seen at one moment."""
        self._judged()
        pods = self.site.pods()
        jobs = self.site.jobs()
        self._one_pod_each(pods)
        self._every_pod_has_an_owner(pods, jobs)
        self._unrest()
        shared: dict[str, list[str]] = defaultdict(list)
        for puppet in self._puppets:
            if (
                puppet.elector is not None
                and puppet.reach is not Reach.JOB
                and not puppet.dead
                and puppet.elector.valid()
            ):
                shared[puppet.elector.ref.name].append(puppet.process.name)
        if any(len(held) > 1 for held in shared.values()):
            self._fail(f"one lease is held twice: {dict(shared)}")

    def _judged(self) -> None:
        """What was wrong with a write, and who believes what of Leases."""
        if self.site.invariants.broken:
            self._fail("; ".join(self.site.invariants.broken))
        acting = [puppet for puppet in self._puppets if not puppet.dead and puppet.leadership.valid()]
        held = [(puppet.process.name, puppet.leadership.ref) for puppet in acting if puppet.elector is not None]
        try:
            self.site.invariants.check_rights(held, {one for puppet in acting for one in puppet.leadership.stale()})
        except AssertionError as error:
            self._fail(str(error))

    def _one_pod_each(self, pods: list[Object]) -> None:
        if self.late:
            return  # a request that arrives after its time may bring a pod of an old attempt, which then goes
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
        """What cannot stay as it is does not, where nothing else happens."""
        now = self.site.simulation.now
        if not self._well():
            self._since.clear()
            return
        if now < self._looked + _LOOK_EVERY:
            return
        self._looked = now
        found = {(one.who, one.what): one for one in self._rest.unrest()}
        for key in self._since.keys() - found.keys():
            del self._since[key]
        for key, one in found.items():
            if now - self._since.setdefault(key, now) > one.patience:
                self._fail(f"{one}, for {now - self._since[key]:.0f} s")


def _line(write: Executed) -> str:
    """A write of a driver, and what a status says with it."""
    call, memory = write.call, {}
    if call.resource in _STATUSES and isinstance(write.body, dict):
        memory = memory_of(write.body)
    keys = ("phase", "reason", "driver", "restarts", "attempts", "admission")
    said = {key: memory[key] for key in keys if memory.get(key)}
    outcome = "ok" if write.error is None else f"{type(write.error).__name__}"
    late = " late" if write.late else ""
    return f"{write.process} {call.verb} {call.resource} {call.name} -> {outcome}{late} {said or ''}"

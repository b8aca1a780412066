"""Runs fault schedules with the production controller in virtual time, checks all rules, and shortens failures."""

from __future__ import annotations

import logging
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import Random

from tests.faults.documents import TEAM, Shape
from tests.faults.proxy import Fault, Kind
from tests.faults.puppet import Puppet, Scope
from tests.faults.record import owner, requested
from tests.faults.rules import Rules
from tests.faults.schedule import ALL_KINDS, COMPANIES, JOBS, Member, Schedule
from tests.faults.simulation import simulated
from tests.faults.site import Backup, Site, alive, deleting, label, memory_of, name, uid
from tests.faults.wire import Server
from tf_dist.cluster.api import CONFIG_MAPS, LEASES, PODS, SERVICES, TFJOBS, VOLCANO_JOBS, Object, Resource
from tf_dist.cluster.lease import LeaseRecord, leader_lease
from tf_dist.core.model import names

# The maximum duration of the end of a schedule, in true seconds.
_LONGEST = 2400.0
# Seconds within which controllers notice that a kind is served again. They check less and less often.
_ASKED_AGAIN = 40.0
# Seconds without disturbances, in which the rules detect states that must not last.
_QUIET = 95.0
# Seconds until the next leader, after the last leader released its Lease or was killed.
_RELEASED, _KILLED = 2.5, 20.0


# Maximum CPU time of a schedule in repeated runs, in seconds. Most schedules take less than a second.
_SHORT_PATIENCE = 20.0


class ScheduleRunner:
    """Runs one schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.counts: Counter[str] = Counter()
        self.ending = False
        self.members: list[Member] = []  # the processes that are started again after they die
        self._stepped = 0.0
        submits = (step.given["shape"] for step in schedule.steps if step.act == "submit")
        self._has_volcano_jobs = any(shape.dialect == "volcano" for shape in (*schedule.jobs, *submits))

    def run(self) -> Counter[str]:
        """Run the schedule, and return the counts of all events. Raises Broken, Stuck, or an exception of a thread."""
        schedule = self.schedule
        dice = Random(f"told {schedule.seed}")
        with defects_noted() as defects, simulated(dice, restless=schedule.restless) as self.simulation:
            self.site = Site(
                self.simulation,
                schedule.cpus,
                seed=schedule.seed,
                slow=schedule.slow,
                failing=schedule.failing,
                longest=schedule.longest,
            )
            self.server = Server(self.simulation, self.site.memory)
            self.puppets: list[Puppet] = []
            self.rules = Rules(self.site, self.puppets, defects)
            self.rules.late = schedule.late
            self.server.told, self.server.acting = self.rules.told, self.rules.acting
            self.server.leads = self.rules.leads
            self.counts = self.site.counts
            try:
                self._run_steps()
            finally:
                for puppet in self.puppets:
                    self.counts.update(puppet.network.struck)
                self.site.memory.close()
        return self.counts

    def _run_steps(self) -> None:
        schedule = self.schedule
        for called, fields in schedule.queues.items():
            self.site.set_queue(called, **fields)
        jobs = dict(zip(JOBS, schedule.jobs, strict=False))
        self.members = [member for member in COMPANIES[schedule.company] if member.scope is not Scope.RUN]
        for member in COMPANIES[schedule.company]:
            if member.scope is not Scope.RUN:
                self._appear(member)
            elif jobs:
                called = min(jobs)
                self._appear(member, (called, jobs.pop(called)))
        for called, shape in jobs.items():
            self.site.submit(called, shape)
        self.backups: list[Backup] = []
        for step in schedule.steps:
            self._pass(step.pause)
            self.backups.append(self.site.backup())
            self.site.note(f"--- {step}")
            self.rules.calm_since = None
            getattr(self, step.act)(**step.given)
        self._end()

    def _pass(self, seconds: float) -> None:
        """Let time pass, and check all rules every second."""
        end = self.simulation.now + seconds
        while (rest := end - self.simulation.now) > 1e-9:
            self.simulation.run(min(1.0, rest))
            self.rules.check()
            self._replace()

    def _appear(self, member: Member, job: tuple[str, Shape] | None = None) -> None:
        schedule, dice = self.schedule, self.simulation.dice
        kinds = member.kinds if self._has_volcano_jobs else (TFJOBS,)
        puppet = Puppet(
            self.site,
            self.server,
            member.scope,
            len(self.puppets) + 1,
            kinds if job is None else (job[1].resource if job[1].dialect == "volcano" else TFJOBS,),
            skew=self._stepped + (dice.choice((0.0, 0.0, -3.0, 40.0)) if schedule.skewed else 0.0),
            rate=dice.choice((1.0, 0.97, 1.03)) if schedule.skewed else 1.0,
            retries=schedule.retries,
            workers=dice.choice((1, 4)),
            job=job,
        )
        puppet.network.latency, puppet.network.lag = schedule.latency, schedule.lag
        if any(step.act == "delete_lease" for step in schedule.steps):
            # Two leaders may write against each other until one of them reads the Lease, which must take time.
            puppet.network.latency = max(schedule.latency, 0.01)
        self.puppets.append(puppet)
        self.site.counts["processes"] += 1

    def _replace(self) -> None:
        """Start dead processes again after a while, as a Deployment or Airflow does."""
        for member in () if self.ending else dict.fromkeys(self.members):
            there = {puppet.scope for puppet in self._staying()}
            if member.scope not in there and self.simulation.dice.random() < 0.2:
                self._appear(member)

    def _staying(self) -> list[Puppet]:
        """The processes that may lead. A process with the scope ``ALONE`` gets a successor only after its end."""
        return [puppet for puppet in self._living() if not puppet.leaving or puppet.scope is Scope.ALONE]

    def _living(self) -> list[Puppet]:
        return [puppet for puppet in self.puppets if not puppet.dead]

    def _puppet(self, which: int) -> Puppet:
        found = self._living() or self.puppets
        return found[which % len(found)]

    def _later(self, seconds: float, act: Callable[[], object]) -> None:
        self.simulation.at(self.simulation.now + seconds, act)

    # Processes

    def die(self, which: int) -> None:
        self._puppet(which).die()
        self.counts["killed"] += 1

    def leave(self, which: int) -> None:
        self._puppet(which).leave()
        self.counts["left"] += 1

    def doom(self, which: int, writes: int, kinds: frozenset[str]) -> None:
        self._puppet(which).network.doom = writes, kinds

    def nap(self, which: int, writes: int, kinds: frozenset[str], seconds: float) -> None:
        self._puppet(which).network.nap = writes, kinds, seconds

    def install(self, kinds: tuple[Resource, ...], replicas: int) -> None:
        """Install a controller of the cluster, or more replicas."""
        if self.schedule.company != "alone" and len(self._living()) < 5:
            for _ in range(replicas):
                self.members.append(Member(Scope.CLUSTER, kinds))
                self._appear(self.members[-1])
            self.counts["installed"] += 1

    def uninstall(self, killed: bool) -> None:
        """Uninstall the controller of the cluster and its Leases."""
        if self.schedule.company == "alone":
            return
        self.members = [member for member in self.members if member.scope is not Scope.CLUSTER]
        for puppet in self._living():
            if puppet.scope is Scope.CLUSTER:
                (puppet.die if killed else puppet.leave)()
                self.counts["uninstalled"] += 1
        for kind in ALL_KINDS:
            self._later(30.0, partial(self._forget_lease, kind))

    def _forget_lease(self, kind: Resource) -> None:
        if not any(puppet.scope is Scope.CLUSTER for puppet in self._staying()):
            self.delete_lease(kind, namespaced=False)

    def upgrade(self) -> None:
        """Replace each replica of the controller of the cluster."""
        for puppet in self._living():
            if puppet.scope is Scope.CLUSTER and not puppet.leaving:
                self._appear(Member(Scope.CLUSTER, puppet.kinds))
                puppet.leave()
                self.counts["upgraded"] += 1

    def delete_lease(self, kind: Resource, namespaced: bool) -> None:
        self.site.delete_lease(leader_lease(kind, TEAM if namespaced else None))

    def appear(self) -> None:
        if self.members and self.schedule.company != "alone" and len(self._living()) < 4:
            self._appear(self.simulation.dice.choice(self.members))

    def quiet(self) -> None:
        self._pass(60.0)

    # Clocks

    def jump(self, which: int, seconds: float) -> None:
        self._puppet(which).process.skew += seconds

    def step_clock(self) -> None:
        """Step all clocks, including those of future processes, as a time service does."""
        self._stepped += 3600.0
        self.site.invariants.clocks_stepped = True
        for puppet in self.puppets:
            puppet.process.skew += 3600.0

    # Nodes

    def _node(self, which: int) -> str:
        nodes = self.site.nodes()
        return nodes[which % len(nodes)]

    def drain(self, which: int, seconds: float, taint: bool) -> None:
        node = self._node(which)
        self.site.drain(node)
        self._later(seconds, partial(self._restore, node))
        self.counts["drained"] += 1

    def lose_node(self, which: int, seconds: float, taint: bool) -> None:
        node = self._node(which)
        self.site.lose_node(node, taint=taint)
        self._later(seconds, partial(self._restore, node))
        self.counts["nodes lost"] += 1

    def remove_node(self) -> None:
        nodes = self.site.nodes()
        if len(nodes) > 1:
            self.site.remove_node(nodes[-1], for_good=True)

    def _restore(self, node: str) -> None:
        if node in self.site.cpus:
            self.site.restore_node(node)

    # Faults

    def write_breaks(
        self,
        which: int,
        kind: Kind,
        code: int,
        skip: int,
        times: int,
        verbs: frozenset[str],
        what: str,
        seconds: float,
    ) -> None:
        if kind in (Kind.LATE, Kind.SLOW) and not self.schedule.late:
            kind = Kind.LOSE
        resources = frozenset({what} if what else ())
        fault = Fault(kind, verbs, resources, skip=skip, times=times, code=code, seconds=seconds)
        self._puppet(which).network.inject(fault)

    def read_breaks(self, which: int, kind: Kind, code: int, times: int, what: str) -> None:
        resources = frozenset({what} if what else ())
        if kind is Kind.STALE and what in ("leases", ""):
            resources = frozenset({"pods", "tfjobs", "jobs"})
        network = self._puppet(which).network
        network.inject(
            Fault(Kind.REFUSE, frozenset({"watch"}), resources, code=410),
            Fault(kind, frozenset({"list", "get"}), resources, times=times, code=code, seconds=3.0),
        )
        network.disconnect(resources)

    def watch_breaks(self, which: int, kind: Kind, code: int, times: int, what: str, after: int) -> None:
        resources = frozenset({what} if what else ())
        network = self._puppet(which).network
        network.inject(Fault(kind, frozenset({"watch"}), resources, times=times, code=code, after=after, seconds=3.0))
        network.disconnect(resources)

    def delay(self, which: int, seconds: float) -> None:
        network = self._puppet(which).network
        network.hold_events()
        self._later(seconds, network.release_events)

    def storm(self, which: int, times: int, what: str) -> None:
        resources = frozenset({what} if what else ())
        self._puppet(which).network.inject(
            Fault(Kind.REFUSE, frozenset({"update", "patch", "delete"}), resources, times=times, code=409)
        )

    def forget_history(self) -> None:
        for puppet in self.puppets:
            puppet.network.disconnect()
        self.site.memory.compact()

    def withdraw(self, which: int, verbs: frozenset[str], what: str, seconds: float) -> None:
        network = self._puppet(which).network
        resources = frozenset({what} if what else ())
        fault = Fault(Kind.REFUSE, verbs, resources, times=None, code=403)
        network.inject(fault)
        network.disconnect(resources)
        self._later(seconds, partial(network.withdraw, fault))

    def unserved(self, which: int, what: str, seconds: float) -> None:
        network = self._puppet(which).network
        fault = Fault(Kind.REFUSE, frozenset({"list", "watch"}), frozenset({what}), times=None, code=404)
        network.inject(fault)
        network.disconnect(frozenset({what}))
        network.unserved[what] = self.simulation.now + seconds + _ASKED_AGAIN
        self._later(seconds, partial(network.withdraw, fault))

    def restore_etcd(self, back: int) -> None:
        """The API server is down until every Lease has expired, and comes back with an older state."""
        self.server.away = True
        for puppet in self.puppets:
            puppet.network.disconnect()
        self._pass(30.0)
        self.server.away = False
        self.site.restore(self.backups[-1 - back % len(self.backups)])
        self.rules.restored()
        self.server.stir()

    def calm(self, which: int) -> None:
        for puppet in self.puppets:
            puppet.network.calm()

    # Users and kubelets

    def submit(self, name: str, shape: Shape) -> None:
        self.site.submit(name, shape)

    def delete(self, name: str) -> None:
        self.site.delete_job(name)

    def suspend(self, name: str, wish: bool) -> None:
        self.site.suspend(name, wish)

    def scale(self, name: str, workers: int) -> None:
        self.site.scale(name, workers)

    def spoil(self, name: str, how: Object) -> None:
        self.site.spoil(name, how)

    def mend(self, name: str) -> None:
        self.site.mend(name)

    def end_pod(self, which: int, code: int) -> None:
        if pod := self.site.pod(which):
            self.site.end(pod, code)

    def evict(self, which: int) -> None:
        if pod := self.site.pod(which):
            self.site.evict(pod)

    def delete_pod(self, which: int) -> None:
        if pod := self.site.pod(which):
            self.site.delete_pod(pod)

    def limit(self, hard: Mapping[str, int]) -> None:
        self.site.limit(**hard)

    def quota(self, name: str = "", cpu: int = 0) -> None:
        if name:
            self.site.set_queue(name, cpu, parent="research")

    def namespace(self, seconds: float) -> None:
        self.site.delete_namespace()
        self._later(seconds, self.site.make_namespace)

    # The end

    def _end(self) -> None:
        self._calm_down()
        self._pass(_QUIET)  # suspended jobs and jobs without quota must not run
        self._let_go()
        self._until(self._at_rest, "never comes to rest")
        self._pass(_QUIET)  # wait for what is due later
        for job in self.site.jobs():
            self.site.delete_job(name(job))
        self._until(self._nothing_left, "something is left")
        self.ending = True
        self._hand_over(Puppet.leave, _RELEASED)
        self._hand_over(Puppet.die, _KILLED)
        staying = self._living()
        for puppet in staying:
            puppet.leave()
        self._until(lambda: not self._living(), "processes do not end")
        holders = {LeaseRecord.of(lease).holder for lease in self.site.memory.list(LEASES).items}
        if left := holders & {puppet.process.name for puppet in staying}:
            self.rules._fail(f"leases are left behind by {left}")

    def _hand_over(self, end: Callable[[Puppet], None], within: float) -> None:
        """End the leaders of all kinds. Other candidates, if any, must lead soon."""
        leaders = [one for one in self._living() if one.leases and one.leadership.kinds() and not one.leaving]
        others = [one for one in self._living() if one not in leaders and one.scope is not Scope.RUN]
        kinds = {kind for leader in leaders for kind in leader.leadership.kinds()}
        if not others or not leaders:
            return
        self.rules.begin_anew()
        for leader in leaders:
            end(leader)
        self._until(lambda: all(one.dead for one in leaders), "processes do not end")
        # Add time for a slow network, for kinds that candidates first leave to the leader of the first kind, and for
        # the Lease of a killed host in a namespace.
        within += 10 * (self.schedule.lag + self.schedule.latency) + 2.5
        if any(lease["metadata"]["namespace"] == TEAM for lease in self.site.memory.list(LEASES).items):
            within += 15.0
        end_at, wanted = self.simulation.now + within, {kind for kind in kinds if any(kind in o.kinds for o in others)}
        while missing := wanted - {kind for one in self._living() for kind in one.leadership.kinds()}:
            if self.simulation.now > end_at:
                self.rules._fail(f"nobody leads {missing} within {within:g} s")
            self._pass(0.5)
        self.counts["handed over"] += 1

    def _calm_down(self) -> None:
        self.site.note("--- it is calm")
        for puppet in self.puppets:
            puppet.network.calm()
            puppet.process.skew = self._stepped
        for node in self.site.nodes():
            self.site.restore_node(node)
        for called in JOBS:
            self.site.mend(called)
        self.site.make_namespace()
        if not self._all_kinds_have_candidates():
            wide = any(member.scope is Scope.CLUSTER for member in self.members)
            scope = Scope.ALONE if self.schedule.company == "alone" else Scope.CLUSTER if wide else Scope.NAMESPACE
            self.members.append(Member(scope))
            self._appear(self.members[-1])
        self.rules.calm_since = self.simulation.now

    def _all_kinds_have_candidates(self) -> bool:
        there = [puppet for puppet in self._staying() if puppet.scope is not Scope.RUN]
        wanted = ALL_KINDS if self._has_volcano_jobs else (TFJOBS,)
        return all(any(kind in puppet.kinds for puppet in there) for kind in wanted)

    def _let_go(self) -> None:
        for called in JOBS:
            self.site.suspend(called, False)
        self.site.limit()

    def _until(self, done: Callable[[], bool], problem: str) -> None:
        end = self.simulation.now + _LONGEST
        while not done():
            if self.simulation.now > end:
                self.rules._fail(f"{problem}: {self._described()}")
            self._pass(2.0)

    def _at_rest(self) -> bool:
        self.site.make_namespace()
        self._clear_away()
        return all(self._job_at_rest(job) for job in self.site.jobs())

    def _clear_away(self) -> None:
        """End the pods of finished jobs as a user does, because no other client does."""
        for job in self.site.jobs():
            if memory_of(job).get("phase") in ("Completed", "Failed", "Terminated"):
                for pod in self.site.pods():
                    if owner(pod) == uid(job) and not deleting(pod):
                        self.site.end(pod, 0)

    def _job_at_rest(self, job: Object) -> bool:
        memory = memory_of(job)
        living = [pod for pod in alive(self.site.pods()) if owner(pod) == uid(job)]
        match memory.get("phase"):
            case "Completed" | "Failed" | "Terminated":
                shape = self.site.shapes[uid(job)]
                return not living or (shape.dialect == "v1" and shape.clean == "None")
            case _ if self.site.invariants.job(job) is None:
                # The job was scaled beyond its own limits before a controller read it, or while no controller ran. It
                # waits for a correction, and reports this. Its pods do not change.
                return bool(memory.get("refusedSpec")) and (bool(memory.get("acceptedSpec")) or not living)
            case "Pending":
                return memory.get("reason", "").startswith("NeverFits") and not living and self._never_fits(job)
            case "Running":
                return bool((memory.get("admission") or {}).get("started")) and self._rest_never_fits(job, living)
        return False

    def _rest_never_fits(self, job: Object, living: list[Object]) -> bool:
        """Whether only parameter servers are left of a gang that has started in part, and beside them, no worker fits
        on any node.
        """
        if any(label(pod, names.REPLICA_TYPE) != "ps" for pod in living):
            return False
        free = Counter(self.site.cpus)
        for pod in alive(self.site.pods()):
            free[pod["spec"].get("nodeName", "")] -= int(requested(pod["spec"]))
        return all(free[node] < self.site.shapes[uid(job)].cpu for node in self.site.cpus)

    def _never_fits(self, job: Object) -> bool:
        shape = self.site.shapes[uid(job)]
        workers = shape.fewest if shape.fewest is not None else shape.workers
        size = shape.ps + workers + (shape.dialect == "v1alpha1")
        return bool(shape.queue) or size > sum(cpu // shape.cpu for cpu in self.site.cpus.values())

    def _nothing_left(self) -> bool:
        kinds = (PODS, SERVICES, CONFIG_MAPS, TFJOBS, VOLCANO_JOBS)
        return not any(self.site.memory.list(kind, TEAM).items for kind in kinds)

    def _described(self) -> str:
        jobs = [(name(job), memory_of(job)) for job in self.site.jobs()]
        pods = [(name(pod), (pod.get("status") or {}).get("phase")) for pod in self.site.pods()]
        processes = [
            (p.process.name, p.scope, p.leadership.kinds(), p.controller and p.controller.informers.problems())
            for p in self._living()
        ]
        return f"{jobs} {pods} {processes}"


@contextmanager
def defects_noted() -> Iterator[list[str]]:
    """Collect the tracebacks that are logged, because a thread that catches all errors must not hide a defect."""
    found: list[str] = []

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1] is not None:
                found.append("".join(traceback.format_exception(record.exc_info[1])))

    logger, handler = logging.getLogger("tf_dist"), Notes(logging.WARNING)
    before, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise AssertionError in the main thread if the block takes longer than this CPU time in seconds.

    Nothing else ends a schedule with an endless loop in which virtual time passes.
    """

    def too_long(*_: object) -> None:
        raise AssertionError(f"no end after {seconds:g} s")

    before = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def fails(schedule: Schedule) -> BaseException | None:
    """The error of a schedule, or None."""
    try:
        with limited(_SHORT_PATIENCE):
            ScheduleRunner(schedule).run()
    except Exception as error:
        return error
    return None


def shortened(schedule: Schedule, *, most: int = 200) -> Schedule:
    """A schedule with fewer steps and jobs that also fails."""
    budget = most
    size = max(1, len(schedule.steps) // 2)
    while size and budget > 0:
        begin = 0
        while begin < len(schedule.steps) and budget > 0:
            shorter = replace(schedule, steps=schedule.steps[:begin] + schedule.steps[begin + size :])
            budget -= 1
            if fails(shorter):
                schedule = shorter
            else:
                begin += size
        size //= 2
    for index in reversed(range(len(schedule.jobs))):
        shorter = replace(schedule, jobs=schedule.jobs[:index] + schedule.jobs[index + 1 :])
        if fails(shorter):
            schedule = shorter
    calmer = [{"lag": 0.0}, {"latency": 0.0}, {"restless": 0.0}, {"skewed": False}, {"failing": 0.0}, {"late": False}]
    for fields in calmer:
        shorter = replace(schedule, **fields)
        if fails(shorter):
            schedule = shorter
    return schedule

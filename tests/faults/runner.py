"""Runs fault schedules on virtual time, with the production driver, under all rules; shortens those that fail."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import Random

from tests.faults.documents import TEAM, Shape
from tests.faults.proxy import Fault, Kind
from tests.faults.puppet import Puppet, Reach
from tests.faults.record import owner
from tests.faults.rules import Rules
from tests.faults.schedule import COMPANIES, JOBS, LATE_JOBS, WRITES, Schedule, drawn
from tests.faults.simulation import simulated
from tests.faults.site import Backup, Site, alive, cpu_of, deleting, memory_of, name, node_of, uid
from tests.faults.wire import Server
from tf_dist.cluster.api import CONFIG_MAPS, LEASES, PODS, SERVICES, TFJOBS, VOLCANO_JOBS, Object
from tf_dist.controller.leases.lease import pending_admissions_lease

# The most that the end of a schedule may take, in true seconds.
_LONGEST = 2400.0
# Seconds within which it is found out that a kind is served again, as it is asked for ever more seldom.
_ASKED_AGAIN = 40.0
# For how long it stays as it is, so that it can be seen whether it may.
_QUIET = 95.0
_READS = frozenset({"get", "list", "watch"})
# After which drivers that are well have seen everything.
_SEEN = 30.0


# Seconds of a processor that a schedule may take when it is run again and again: most take less than one.
_SHORT_PATIENCE = 20.0


class ScheduleRunner:
    """Runs one schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.counts: Counter[str] = Counter()
        self.ending = False

    def run(self) -> Counter[str]:
        """Run it to its end, and return how often what happened. Raises Broken, Stuck, or an exception of a thread."""
        schedule = self.schedule
        dice = Random(f"told {schedule.seed}")
        with simulated(dice, restless=schedule.restless) as self.simulation:
            self.site = Site(
                self.simulation,
                schedule.cpus,
                seed=schedule.seed,
                slow=schedule.slow,
                failing=schedule.failing,
                longest=schedule.longest,
                polite=schedule.polite,
            )
            self.server = Server(self.simulation, self.site.memory)
            self.puppets: list[Puppet] = []
            self._to_come: list[Fault] = []  # for drivers that appear until it is calm
            self.rules = Rules(self.site, self.puppets)
            self.rules.late = schedule.late
            self.server.told, self.server.acting = self.rules.told, self.rules.acting
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
        for reach in COMPANIES[schedule.company]:
            own = None
            if reach is Reach.JOB and jobs:
                called = min(jobs)
                own = called, jobs.pop(called)
            if reach is not Reach.JOB or own is not None:
                self._appear(reach, own)
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
        """Time goes on; all rules are looked at every second."""
        end = self.simulation.now + seconds
        while (rest := end - self.simulation.now) > 1e-9:
            self.simulation.run(min(1.0, rest))
            self.rules.check()
            self._replace()

    def _appear(self, reach: Reach, job: tuple[str, Shape] | None = None) -> None:
        schedule, dice = self.schedule, self.simulation.dice
        number = len(self.puppets) + 1
        volcano = any(shape.dialect == "volcano" for shape in schedule.jobs) or any(
            step.act == "submit" and step.given["shape"].dialect == "volcano"
            for step in (*schedule.steps, *schedule.calm)
        )
        puppet = Puppet(
            self.site,
            self.server,
            reach,
            number,
            skew=dice.choice((0.0, 0.0, -3.0, 40.0)) if schedule.skewed else 0.0,
            rate=dice.choice((1.0, 0.97, 1.03)) if schedule.skewed else 1.0,
            retries=schedule.retries,
            workers=dice.choice((1, 4)),
            volcano=volcano,
            intents=schedule.intents,
            job=job,
        )
        puppet.network.latency, puppet.network.lag = schedule.latency, schedule.lag
        if schedule.narrow and reach is Reach.NAMESPACE:
            puppet.network.rights = (Fault(Kind.REFUSE, _READS, frozenset({"nodes"}), times=None, code=403),)
        puppet.network.inject(*puppet.network.rights, *map(replace, self._to_come))
        self.puppets.append(puppet)
        self.site.counts["processes"] += 1

    def _replace(self) -> None:
        """A Deployment brings back what died, after a while."""
        for reach in (
            () if self.ending else {reach: None for reach in COMPANIES[self.schedule.company] if reach is not Reach.JOB}
        ):
            if not any(puppet.reach is reach for puppet in self._living()) and self.simulation.dice.random() < 0.2:
                self._appear(reach)

    def _living(self) -> list[Puppet]:
        return [puppet for puppet in self.puppets if not puppet.dead]

    def _puppet(self, which: int) -> Puppet:
        found = self._living() or self.puppets
        return found[which % len(found)]

    def _later(self, seconds: float, act: Callable[[], object]) -> None:
        self.simulation.at(self.simulation.now + seconds, act)

    # Drivers

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

    def hand_over(self, refusals: int, code: int, writes: int) -> None:
        """Who decides for all dies of its next writes to the list of intentions; whom it names others may not touch."""
        decides = [puppet for puppet in self._living() if puppet.arbiter is not None and puppet.arbiter.for_all()]
        for puppet in decides:
            puppet.network.doom = writes, frozenset({pending_admissions_lease().name})
        refused = Fault(Kind.REFUSE, frozenset({"patch"}), frozenset({"tfjobs", "jobs"}), times=refusals, code=code)
        for puppet in self._living():
            if puppet not in decides:
                puppet.network.inject(replace(refused))
        self._to_come.append(refused)

    def refused_everywhere(
        self, what: frozenset[str], verbs: frozenset[str], code: int, skip: int, times: int | None, seconds: float
    ) -> None:
        for puppet in self._living():
            fault = Fault(Kind.REFUSE, verbs, what, skip=skip, times=times, code=code)
            puppet.network.inject(fault)
            self._later(seconds, partial(puppet.network.withdraw, fault))

    def lapse(self, times: int, later: int) -> None:
        """Who holds a Lease cannot renew it, and is to come again with what else it writes, until it has lapsed."""
        for puppet in self._living():
            if puppet.elector is not None and puppet.leadership.valid():
                network, resources = puppet.network, frozenset({"tfjobs", "jobs", "pods"})
                renewals = Fault(Kind.REFUSE, frozenset({"update"}), frozenset({"leases"}), times=None)
                busy = Fault(Kind.REFUSE, WRITES, resources, times=2 + times % 2, code=429, retry_after=later)
                network.inject(renewals, busy)
                self._later(40.0, partial(network.withdraw, renewals))

    def hold_pods(self, seconds: float) -> None:
        """Who may take over sees nothing of pods."""
        for puppet in self._living():
            if puppet.reach in (Reach.CLUSTER, Reach.NAMESPACE):
                puppet.network.hold_events(frozenset({"pods"}))
                self._later(seconds, puppet.network.release_events)

    def die_of(self) -> None:
        """The driver of a job dies."""
        drivers = {memory_of(job).get("driver") for job in self.site.jobs()} - {None, ""}
        found = [one for one in self._living() if one.elector is not None and one.leadership.ref in drivers]
        for puppet in sorted(found, key=lambda one: one.reach is not Reach.JOB)[:1]:
            self.die(self._living().index(puppet))

    def others_write(self, times: int) -> None:
        """What is no business of ours is written so many times."""
        self.site.memory._store.version += times

    def stop_shared(self, seconds: float) -> None:
        for puppet in self._living():
            if puppet.reach is not Reach.JOB and not puppet.process.stopped:
                puppet.process.stop()
                self._later(seconds, puppet.process.go_on)

    def delay_all(self, seconds: float) -> None:
        for index in range(len(self._living())):
            self.delay(index, seconds)

    def appear(self) -> None:
        reaches = [reach for reach in COMPANIES[self.schedule.company] if reach not in (Reach.ALONE, Reach.JOB)]
        if reaches and len(self._living()) < 4:
            self._appear(self.simulation.dice.choice(reaches))

    def quiet(self) -> None:
        self._pass(60.0)

    # Clocks

    def jump(self, which: int, seconds: float) -> None:
        self._puppet(which).process.skew += seconds

    def step_clock(self) -> None:
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
        """The API server is away for so long that every Lease runs out, and comes back with an older state."""
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

    # Hands

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

    def _of(self, called: str) -> Object | None:
        """A job's first worker, where it runs."""
        found = (pod for pod in self.site.pods() if name(pod) == f"{called}-worker-0" and owner(pod))
        return next(found, None)

    def restart_container(self, name: str) -> None:
        if pod := self._of(name):
            self.site.restart_container(pod)

    def evict_of(self, name: str) -> None:
        if pod := self._of(name):
            self.site.evict(pod)

    def stranger(self, which: int, how: str, cpu: int) -> None:
        pod = self.site.pod(which)
        if pod is None or not how:
            self.site.add_stranger(cpu)
        elif how == "labels":
            self.site.add_stranger(cpu, labels=dict(pod["metadata"].get("labels") or {}))
        elif owner(pod):
            self.site.evict(pod)
            self.site.add_stranger(cpu, called=name(pod))

    def strangers_go(self, most: int = 99) -> None:
        for pod in self.site.strangers()[:most]:
            self.site.remove_stranger(pod)

    def crowd(self) -> None:
        """Pods of others take all that is free and promised to no job."""
        promised = sum(self.rules.site.invariants.holds(job) for job in self.site.jobs())
        taken = sum(cpu_of(pod) for pod in alive(self.site.pods()) if owner(pod))
        for _ in range(self.site.free() - max(0, int(promised) - taken)):
            self.site.add_stranger(1)

    def open_node(self) -> None:
        for node in self.site.nodes():
            self.site.restore_node(node)

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
        if self.schedule.calm:
            self._pass(_SEEN)
        for step in self.schedule.calm:
            self._pass(step.pause)
            self.site.note(f"--- {step}")
            getattr(self, step.act)(**step.given)
        self._pass(_QUIET)  # what was suspended, or has no quota, is so in truth
        self._let_go()
        self._until(self._at_rest, "never comes to rest")
        self._pass(_QUIET)  # what falls due later does
        for job in self.site.jobs():
            self.site.delete_job(name(job))
        self._until(self._nothing_left, "something is left")
        held = [puppet for puppet in self._living() if puppet.elector is not None and puppet.elector.valid()]
        self.ending = True
        for puppet in self._living():
            puppet.leave()
        self._until(lambda: not self._living(), "drivers do not end")
        left = {name(lease) for lease in self.site.memory.list(LEASES, "default").items}
        kept = {puppet.elector.ref.name for puppet in held if puppet.reach is Reach.JOB and puppet.elector is not None}
        if left & kept:
            self.rules._fail(f"leases are left behind: {left & kept}")

    def _calm_down(self) -> None:
        self.site.note("--- it is calm")
        for puppet in self.puppets:
            puppet.network.calm()
            puppet.process.skew = 0.0
        self._to_come.clear()
        for node in self.site.nodes():
            self.site.restore_node(node)
        if self.schedule.closed:
            self.site.close_node(self.site.nodes()[0])
        for stranger in self.site.strangers():
            if not node_of(stranger):  # it would take what is promised
                self.site.remove_stranger(stranger)
        for called in JOBS:
            self.site.mend(called)
        self.site.make_namespace()
        if not any(puppet.reach in (Reach.ALONE, Reach.CLUSTER) for puppet in self._living()):
            self._appear(Reach.ALONE if self.schedule.company == "alone" else Reach.CLUSTER)
        self.rules.calm_since = self.simulation.now

    def _let_go(self) -> None:
        for called in (*JOBS, *LATE_JOBS):
            self.site.suspend(called, False)
        self.site.limit()
        self.strangers_go()
        self.open_node()

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
        """A user ends what runs on after a job has ended, since no other client does."""
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
            case "Pending" if self.site.invariants.job(job) is None:
                # Scaled beyond its own bounds before any driver had read it: it waits until it is mended, and says so.
                return bool(memory.get("refusedSpec")) and not living
            case "Pending":
                return memory.get("reason", "").startswith("NeverFits") and not living and self._never_fits(job)
        return False

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
        drivers = [
            (p.process.name, p.reach, p.leadership.valid(), p.driver.informers.problems()) for p in self._living()
        ]
        return f"{jobs} {pods} {drivers}"


def run(seed: int, *, more: bool = False) -> Counter[str]:
    """Run the schedule of a seed; what happened how often. When it fails, AssertionError or what a thread raised."""
    return ScheduleRunner(drawn(seed, more=more)).run()


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """AssertionError in the main thread when what is done takes longer than so many seconds of a processor.

    A schedule that goes round in circles, and in which time passes all the same, ends in no other way.
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
    """How a schedule fails; None: it does not."""
    try:
        with limited(_SHORT_PATIENCE):
            ScheduleRunner(schedule).run()
    except Exception as error:
        return error
    return None


def shortened(schedule: Schedule, *, most: int = 200) -> Schedule:
    """A schedule with fewer steps and jobs that fails, too."""
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

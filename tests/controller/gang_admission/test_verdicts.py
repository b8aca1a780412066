"""The admission loop: pauses, changes during decisions, outdated verdicts, and errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from tests.controller.harness import Clock, RunningClock, World, disturbed, tfjob
from tests.waiting import until
from tf_dist.cluster.api import TFJOBS, Resource
from tf_dist.controller.controller import Controller
from tf_dist.controller.gang_admission import GangAdmission
from tf_dist.controller.informers.informer_set import InformerSet
from tf_dist.controller.job_index import JobChanges, JobEntry, JobIndex
from tf_dist.controller.observability.metrics_interface import Metric, MetricsRecorder
from tf_dist.controller.settings import ControllerContext
from tf_dist.core.gang.admission import AdmissionChanges
from tf_dist.core.gang.types import AdmissionRequest
from tf_dist.core.model import names
from tf_dist.core.model.assignment import Admit
from tf_dist.core.model.timestamps import format_time

SILENT: Any = {"on_job": lambda *_: None, "on_owned": lambda *_: None, "on_capacity_freed": list}


def context(world: World, monotonic: Callable[[], float] = time.monotonic) -> ControllerContext:
    return ControllerContext(cluster=world.memory, clock=world.clock, monotonic=monotonic)


class Counted(MetricsRecorder):
    """Counts the gangs that admission could not evaluate."""

    def __init__(self) -> None:
        self.gangs = 0

    def record(self, metric: Metric, *labels: str, value: float = 1.0) -> None:
        self.gangs += int(value) if metric is Metric.UNDECIDABLE_GANGS else 0


class Unhashable(str):
    """A text that cannot be the key of a dict."""

    __hash__ = None  # type: ignore[assignment]


class Altered(InformerSet):
    """Informers whose changes are altered before admission reads them."""

    def __init__(self, world: World, alter: Callable[[AdmissionChanges], AdmissionChanges]) -> None:
        super().__init__(
            ControllerContext(cluster=world.memory),
            on_job=lambda *_: None,
            on_owned=lambda *_: None,
            on_capacity_freed=list,
        )
        self._alter = alter

    def changes(self, jobs: Mapping[str, AdmissionRequest | None], *, whole: bool) -> AdmissionChanges:
        return self._alter(super().changes(jobs, whole=whole))


class Slow:
    """A clock that advances by the given seconds while admission reads changes."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def reading(self, job_index: JobIndex, seconds: float) -> Callable[[], JobChanges]:
        def read() -> JobChanges:
            self.now += seconds
            return job_index.changes()

        return read


@pytest.mark.parametrize(("seconds", "rests"), [(0.002, 0.008), (0.01, 0.04), (60.0, 0.1)])
def test_admission_pauses_four_times_decision_duration_and_at_most_100_ms(seconds: float, rests: float) -> None:
    world, clock, job_index = World(), Slow(), JobIndex()
    world.submit(tfjob("a"))
    world.submit(tfjob("b"))
    informers = world.controller.informers
    informers.refresh()
    known = [job_index.read(ref, stored) for ref, stored in informers.jobs()]
    admission = GangAdmission(context(world, clock), informers)
    assert (admission.wanted, admission.pause()) == (True, 0.0)
    assert admission.decide(clock.reading(job_index, seconds)) == [entry.ref for entry in known]
    assert (admission.wanted, admission.pause() > 3600) == (False, True)
    admission.want()
    assert (admission.wanted, admission.pause()) == (True, pytest.approx(rests))
    clock.now += rests
    assert admission.pause() == pytest.approx(0.0)


def test_admission_pauses_after_failed_decision() -> None:
    world, clock = World(), Slow()
    admission = GangAdmission(context(world, clock), world.controller.informers)

    def failing() -> JobChanges:
        clock.now += 0.01
        raise ZeroDivisionError("a defect")

    with pytest.raises(ZeroDivisionError):
        admission.decide(failing)
    assert (admission.wanted, admission.pause()) == (True, pytest.approx(0.04))


def test_change_during_decision_is_not_lost() -> None:
    """The current decision does not include the change, so the change must wake the loop again."""
    world, job_index = World(), JobIndex()
    world.submit(tfjob())
    informers = world.controller.informers
    informers.refresh()
    admission = GangAdmission(context(world), informers)

    def disturbed() -> JobChanges:
        found = job_index.changes()
        for ref, stored in informers.jobs():
            job_index.read(ref, stored)
        admission.want()
        return found

    assert admission.decide(disturbed) == []
    assert admission.wanted
    assert len(admission.decide(job_index.changes)) == 1


def test_worker_reads_verdict_while_admission_decides() -> None:
    world, job_index = World(), JobIndex()
    world.submit(tfjob())
    informers = world.controller.informers
    informers.refresh()
    admission = GangAdmission(context(world), informers)
    [known] = [job_index.read(ref, stored) for ref, stored in informers.jobs()]
    admission.decide(job_index.changes)
    found: list[object] = []

    def while_it_decides() -> JobChanges:
        with ThreadPoolExecutor(1) as worker:
            found.append(worker.submit(admission.outdated, known).result(60))
            found.append(worker.submit(admission.verdict, known).result(60))
        return job_index.changes()

    admission.decide(while_it_decides)
    assert found == [False, admission.verdict(known)]
    assert isinstance(found[1], Admit)


def test_verdict_for_old_version_is_decided_again() -> None:
    """A client wrote the job between the decision and the pass, but did not change the inputs of admission."""
    world = World()
    world.submit(tfjob())
    informers, job_index = world.controller.informers, JobIndex()
    informers.refresh()
    admission = GangAdmission(context(world), informers)
    [(ref, stored)] = informers.jobs()
    before = job_index.read(ref, stored)
    assert admission.decide(job_index.changes) == [ref]
    assert isinstance(admission.verdict(before), Admit)
    assert not admission.outdated(before)
    body = {**world.job(), "status": {"tfDist": {"phase": "Pending", "message": "hello"}}}
    world.memory.replace(TFJOBS, "default", "mnist", body, subresource="status")
    informers.refresh()
    after = job_index.read(ref, informers.job(ref) or {})
    assert after.admission_inputs == before.admission_inputs
    assert admission.outdated(after)
    assert admission.verdict(after) is None
    assert admission.decide(job_index.changes) == [ref]
    assert isinstance(admission.verdict(after), Admit)


def test_withdrawn_admission_gives_no_verdict_until_next_decision() -> None:
    """The admitter still counts the withdrawn admission until it decides again."""
    world = World()
    world.submit(tfjob())
    informers, job_index = world.controller.informers, JobIndex()
    informers.refresh()
    admission = GangAdmission(context(world), informers)
    [(ref, stored)] = informers.jobs()
    known = job_index.read(ref, stored)
    admission.decide(job_index.changes)
    assert isinstance(admission.verdict(known), Admit)
    admission.withdraw(known.uid)
    assert admission.verdict(known) is None
    admission.decide(job_index.changes)
    assert isinstance(admission.verdict(known), Admit)


def test_undecidable_gang_is_left_out_and_other_gangs_keep_admission() -> None:
    """An unhashable node label fails only in the evaluation of the gang that requests it."""
    world, counted, job_index = World(cpu="6"), Counted(), JobIndex()

    def unhashable(seen: AdmissionChanges) -> AdmissionChanges:
        labels = {"labels": {"zone": Unhashable("a")}}
        return replace(
            seen,
            nodes={
                name: node and {**node, "metadata": {**node["metadata"], **labels}} for name, node in seen.nodes.items()
            },
        )

    informers = Altered(world, unhashable)
    admission = GangAdmission(replace(context(world), recorder=counted), informers)

    def decide() -> dict[str, Any]:
        informers.refresh()
        known = {ref.name: job_index.read(ref, stored) for ref, stored in informers.jobs()}
        admission.decide(job_index.changes)
        return {name: admission.verdict(entry) for name, entry in known.items()}

    world.submit(tfjob("first"))
    assert isinstance(decide()["first"], Admit)
    bad = tfjob("bad")
    bad["metadata"]["annotations"] = {names.TOPOLOGY: "zone", names.TOPOLOGY_REQUIRED: "true"}
    world.clock.now -= 100  # these jobs come before the first job in the queue
    world.submit(bad)
    world.submit(tfjob("second"))
    world.submit(tfjob("third"))
    said = decide()
    assert (type(said["first"]), type(said["second"])) == (Admit, Admit)
    assert (said["bad"].reason, said["bad"].reason.row.unreachable) == ("Unreadable", True)
    assert "admission cannot evaluate it: TypeError" in said["bad"].message
    assert said["third"].reason == "WaitingForCapacity", "what was given before is still taken"
    assert counted.gangs == 1
    assert decide()["bad"].reason == "Unreadable"


def test_failed_decision_starts_again_with_full_state() -> None:
    """Changes that the failed decision has read do not arrive again."""
    world, job_index, fails = World(), JobIndex(), [True]
    world.submit(tfjob())

    def failing(seen: AdmissionChanges) -> AdmissionChanges:
        if fails and fails.pop():
            raise ZeroDivisionError("a defect")
        return seen

    informers = Altered(world, failing)
    informers.refresh()
    admission = GangAdmission(context(world), informers)
    [(ref, stored)] = informers.jobs()
    known = job_index.read(ref, stored)
    with pytest.raises(ZeroDivisionError):
        admission.decide(job_index.changes)
    assert admission.wanted
    assert admission.decide(job_index.changes) == [ref]
    assert isinstance(admission.verdict(known), Admit)


def postpone(world: World, name: str, until: float) -> None:
    """The job has given up its admission until this time."""
    memory = {"phase": "Pending", "reason": "ScheduleTimeout", "notBefore": format_time(until), "requeues": 1}
    world.memory.patch(TFJOBS, "default", name, {"status": {"tfDist": memory}}, subresource="status")


def test_postponed_job_holds_no_capacity_after_clock_is_set_back() -> None:
    """Two jobs fit. The clock is 40 s ahead when the first of them arrives, and is then set back."""
    world, steady = World(cpu="8"), Clock()
    world.controller = Controller(world.memory, clock=world.clock, monotonic=steady)
    world.submit(tfjob("early"))
    postpone(world, "early", world.clock.now + 50)
    world.settle()
    world.clock.now += 40
    world.submit(tfjob("other"))
    world.settle()
    world.clock.now -= 40
    postpone(world, "early", world.clock.now + 30)
    world.settle()
    world.submit(tfjob("late"))
    world.settle()
    reasons = {name: world.status(name)["reason"] for name in ("other", "early", "late")}
    assert reasons == {"other": "Admitted", "early": "ScheduleTimeout", "late": "Admitted"}


def test_job_written_between_decision_and_pass_is_admitted() -> None:
    world, written = World(), [False]

    def write(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("replace", TFJOBS) and not written[0]:
            written[0] = True
            body = {**world.job(), "status": {"tfDist": {"phase": "Pending", "message": "hello"}}}
            world.memory.replace(TFJOBS, "default", "mnist", body, subresource="status")

    world.controller = Controller(disturbed(world.memory, write), clock=world.clock, monotonic=world.clock)
    world.submit(tfjob())
    world.step_until(lambda: written[0])
    world.clock.now += 31  # longer than the delay after a failure
    world.settle()
    assert world.status()["reason"] == "Admitted"


def test_jobs_submitted_during_admission_pause_are_admitted() -> None:
    """No other event wakes the controller."""
    world = World(cpu="64", clock=RunningClock())
    driver = Controller(world.memory, clock=world.clock, monotonic=world.clock)
    driver.start()
    try:
        until(driver.synced, 60)
        for number in range(5):
            world.submit(tfjob(f"job-{number}", workers=1))
        until(lambda: len(world.pods()) == 10, 60)
    finally:
        driver.stop()


def decided(world: World, admission: GangAdmission, job_index: JobIndex) -> dict[str, JobEntry]:
    """Decide about the stored jobs, and return their entries by name."""
    world.controller.informers.refresh()
    known = {ref.name: job_index.read(ref, stored) for ref, stored in world.controller.informers.jobs()}
    admission.decide(job_index.changes)
    return known


def test_restart_discards_earlier_verdicts() -> None:
    world, job_index = World(cpu="9"), JobIndex()
    admission = GangAdmission(context(world), world.controller.informers)
    world.submit(tfjob("a"))
    known = decided(world, admission, job_index)
    assert isinstance(admission.verdict(known["a"]), Admit)
    admission.restart()
    assert admission.verdict(known["a"]) is None
    assert admission.wanted


def test_job_that_was_set_aside_is_decided_about_in_next_term() -> None:
    """The new term forgets the failures, so that no success after a failure would readmit the job."""
    world, job_index = World(cpu="9"), JobIndex()
    admission = GangAdmission(context(world), world.controller.informers)
    world.submit(tfjob("a"))
    known = decided(world, admission, job_index)
    admission.withdraw(known["a"].uid, set_aside=True)
    assert admission.verdict(decided(world, admission, job_index)["a"]) is None
    admission.restart()
    assert isinstance(admission.verdict(decided(world, admission, job_index)["a"]), Admit)


def test_decisions_about_many_gangs_are_handed_out_in_batches() -> None:
    world, job_index = World(cpu="300"), JobIndex()
    world.controller.informers.refresh()
    admission = GangAdmission(context(world), world.controller.informers)
    for number in range(50):
        world.submit(tfjob(f"job-{number:02}", workers=1))
    world.controller.informers.refresh()
    for ref, stored in world.controller.informers.jobs():
        job_index.read(ref, stored)
    handed: list[int] = []
    while admission.pause() == 0.0:
        handed.append(len(admission.decide(job_index.changes)))
    assert sum(handed) == 50
    assert 1 < handed[0] < 50

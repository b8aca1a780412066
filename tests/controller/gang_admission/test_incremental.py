"""Incremental decisions of a controller equal the decisions of a controller that has just started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import given, note
from hypothesis import strategies as st

from tests.cluster.support import node
from tests.controller.harness import Hands, World, container, disturbed, queue, queued, replica, running
from tests.thorough import thorough
from tf_dist.cluster.api import (
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    QUEUES,
    RESOURCE_QUOTAS,
    TFJOBS,
    Object,
    Resource,
)
from tf_dist.cluster.apiserver.scheduler import Scheduler
from tf_dist.controller.controller import Controller
from tf_dist.controller.gang_admission import GangAdmission
from tf_dist.controller.informers.informer_set import InformerSet
from tf_dist.controller.job_index import JobIndex
from tf_dist.controller.observability.metrics_interface import JobMetricsKey
from tf_dist.controller.settings import ControllerContext
from tf_dist.core.gang.quota import QueueUsage
from tf_dist.core.model import names
from tf_dist.core.model.assignment import Verdict
from tf_dist.errors import NotFound, Unavailable

NUMBERS = st.integers(0, 5)
VISION = {"matchLabels": {"team": "vision"}}
JOBS = st.fixed_dictionaries(
    {
        "queue": st.sampled_from(["", "", "a", "b", "nowhere"]),
        "priority": st.sampled_from(["", "", "urgent"]),
        "workers": st.integers(1, 3),
        "least": st.sampled_from([None, None, 1]),
        "port": st.sampled_from([0, 0, 0, 8080]),
    }
)
QUEUE_SPECS = st.fixed_dictionaries(
    {
        "cpu": st.sampled_from(["1", "3", "6"]),
        "spec": st.sampled_from(
            [{}, {"namespaceSelector": VISION}, {"parent": "a"}, {"preemption": "Reclaim"}, {"strategy": "StrictFIFO"}]
        ),
    }
)
STEPS = st.one_of(
    st.tuples(st.just("job"), NUMBERS, JOBS),
    st.tuples(st.just("delete"), NUMBERS),
    st.tuples(st.just("edit"), NUMBERS, st.integers(1, 4)),
    st.tuples(st.just("suspend"), NUMBERS, st.booleans()),
    st.tuples(st.just("run")),
    st.tuples(st.just("succeed"), NUMBERS),
    st.tuples(st.just("evict"), NUMBERS),
    st.tuples(st.just("node"), st.sampled_from(["n1", "n2", "n3"]), st.sampled_from(["2", "4", "8"]), st.booleans()),
    st.tuples(st.just("lost"), st.sampled_from(["n1", "n2", "n3"])),
    st.tuples(st.just("queue"), st.sampled_from("ab"), QUEUE_SPECS),
    st.tuples(st.just("close"), st.sampled_from("ab")),
    st.tuples(st.just("quota"), st.sampled_from([None, "3", "5"])),
    st.tuples(st.just("label"), st.sampled_from(["vision", "speech"])),
    st.tuples(st.just("class"), st.sampled_from([None, 0, 10])),
    st.tuples(st.just("wait"), st.sampled_from([1, 40, 301, 4000])),
    st.tuples(st.just("won anew")),
    st.tuples(st.just("fails"), st.integers(0, 5)),
    st.tuples(st.just("defect"), st.integers(0, 12)),
)


class Defect(Exception):
    """An unexpected error."""


@dataclass(frozen=True)
class Said:
    """The verdicts of all jobs, the usage of the queues, and the numbers of jobs for metrics."""

    verdicts: Mapping[str, Verdict | None]
    queues: Mapping[str, QueueUsage]
    metrics_counts: Mapping[JobMetricsKey, int]

    @classmethod
    def of(cls, job_index: JobIndex, admission: GangAdmission) -> Said:
        known = [one for one in map(job_index.get, job_index) if one is not None]
        verdicts = {one.ref.name: admission.verdict(one) for one in known}
        assert job_index.metrics_counts() == Counter(one.metrics_key for one in known)
        return cls(verdicts, admission.queue_usages(), job_index.metrics_counts())


class Stage(World):
    """A controller, and the events that can affect its jobs."""

    def __init__(self) -> None:
        super().__init__(cpu="4")
        self.scheduler = Scheduler(self.memory)
        self.troubled = False
        self.failing = 0
        self.defect: int | None = None
        self.memory.create(QUEUES, None, queue("a", "3"))
        self.memory.create(QUEUES, None, queue("b", "6", namespaceSelector=VISION))
        self.leadership = Hands()
        self.controller = Controller(
            disturbed(self.memory, self._before),
            clock=self._read,
            monotonic=self.clock,
            leadership=self.leadership,  # type: ignore[arg-type]  # it has all methods that are called
        )

    def _before(self, verb: str, *_: object, **__: object) -> None:
        if self.failing and verb in ("create", "replace", "patch", "delete"):
            self.failing -= 1
            raise Unavailable("the server does not answer")

    def _read(self) -> float:
        """The wall clock of the controller. It can raise an error at any time."""
        if self.defect is not None:
            self.defect -= 1
            if self.defect < 0:
                self.defect = None
                raise Defect("the clock")
        return self.clock.now

    # Events

    def happen(self, what: str, *details: Any) -> None:
        if what == "job":
            self._job(*details)
        elif what == "delete":
            self._delete(TFJOBS, f"job-{details[0]}", "default")
        elif what == "edit":
            self._edit(details[0], lambda spec: spec["tfReplicaSpecs"]["Worker"].update(replicas=details[1]))
        elif what == "suspend":
            self._edit(details[0], lambda spec: spec["runPolicy"].update(suspend=details[1]))
        elif what == "run":
            self._run()
        elif what == "succeed":
            for name in [name for name in self.pods() if name.startswith(f"job-{details[0]}-")]:
                self.end_pod(name, 0)
        elif what == "evict":
            self._delete(PODS, f"job-{details[0]}-worker-0", "default")
        elif what == "node":
            self._node(*details)
        elif what == "lost":
            self._delete(NODES, details[0], None)
        elif what == "queue":
            self._put(QUEUES, None, queue(details[0], details[1]["cpu"], **details[1]["spec"]))
        elif what == "close":
            self._delete(QUEUES, details[0], None)
        elif what == "quota":
            self._quota(*details)
        elif what == "label":
            self.memory.patch(NAMESPACES, None, "default", {"metadata": {"labels": {"team": details[0]}}})
        elif what == "class":
            self._class(*details)
        elif what == "wait":
            self.clock.now += details[0]
        elif what == "won anew":
            self.leadership.epoch += 1
        elif what == "fails":
            self.failing, self.troubled = details[0], True
        else:
            self.defect, self.troubled = details[0], True

    def _job(self, number: int, fields: dict[str, Any]) -> None:
        job = queued(f"job-{number}", fields["queue"], fields["priority"])
        one = container() | ({"ports": [{"containerPort": 80, "hostPort": fields["port"]}]} if fields["port"] else {})
        worker = replica(fields["workers"]) | {"template": {"spec": {"containers": [one]}}}
        job["spec"]["tfReplicaSpecs"] = {"Worker": worker}
        annotations = {names.MIN_WORKERS: fields["least"] and str(fields["least"])}
        job["metadata"]["annotations"] = {key: value for key, value in annotations.items() if value}
        self._put(TFJOBS, "default", job)

    def _put(self, kind: Resource, namespace: str | None, document: Object) -> None:
        """Replace an existing object by a new object with another uid."""
        self._delete(kind, document["metadata"]["name"], namespace)
        self.memory.create(kind, namespace, document)

    def _delete(self, kind: Resource, name: str, namespace: str | None) -> None:
        try:
            self.memory.delete(kind, namespace, name)
        except NotFound:
            return

    def _edit(self, number: int, change: Callable[[Any], object]) -> None:
        try:
            self.memory.get(TFJOBS, "default", f"job-{number}")
        except NotFound:
            return
        stored = self.memory.get(TFJOBS, "default", f"job-{number}")
        spec = dict(stored["spec"])
        spec["runPolicy"] = dict(spec["runPolicy"])
        spec["tfReplicaSpecs"] = {"Worker": dict(spec["tfReplicaSpecs"]["Worker"])}
        change(spec)
        self.memory.replace(TFJOBS, "default", f"job-{number}", {**stored, "spec": spec})

    def _run(self) -> None:
        self.scheduler.step()
        for name, pod in self.pods().items():
            if pod["spec"].get("nodeName") and pod["status"].get("phase", "Pending") == "Pending":
                self.set_status(name, running())

    def _node(self, name: str, cpu: str, cordoned: bool) -> None:
        self._put(NODES, None, node(name, cpu=cpu))
        self.memory.patch(NODES, None, name, {"spec": {"unschedulable": cordoned}})

    def _quota(self, pods: str | None) -> None:
        self._delete(RESOURCE_QUOTAS, "most", "default")
        if pods is not None:
            self.memory.create(
                RESOURCE_QUOTAS, "default", {"metadata": {"name": "most"}, "spec": {"hard": {"pods": pods}}}
            )

    def _class(self, value: int | None) -> None:
        self._delete(PRIORITY_CLASSES, "urgent", None)
        if value is not None:
            self.memory.create(PRIORITY_CLASSES, None, {"metadata": {"name": "urgent"}, "value": value})

    # Results

    def rest(self) -> None:
        """Run the controller until nothing is left to do, including retries."""
        idle = 0
        for _ in range(80):
            try:
                taken = self.controller.step(())
            except (Unavailable, Defect):
                taken = 1
            self.bury()
            idle = 0 if taken else idle + 1  # the next pass sees the changes of this pass
            if idle > 1 and not self.troubled:
                return
            if idle > 1:
                self.troubled, self.failing, self.defect, idle = False, 0, None, 0
                self.clock.now += 40  # longer than any delay after a failure
        raise AssertionError(self.describe())

    def said(self) -> Said:
        """The current results of the controller."""
        self.controller._admission.want()
        assert self.controller.step(()) == 0
        return Said.of(self.controller._job_index, self.controller._admission)

    def said_anew(self) -> Said:
        """The results of a controller that has just started."""
        context = ControllerContext(cluster=self.memory, clock=self.clock)
        informers = InformerSet(context, on_job=lambda *_: None, on_owned=lambda *_: None, on_capacity_freed=list)
        informers.refresh()
        job_index = JobIndex()
        for ref, stored in informers.jobs():
            job_index.read(ref, stored)
        admission = GangAdmission(context, informers)
        while admission.pause() <= 0:
            admission.decide(job_index.changes)
        return Said.of(job_index, admission)


@given(st.lists(JOBS, min_size=3, max_size=6), st.lists(STEPS, min_size=8, max_size=30), st.integers(1, 3))
@thorough(50)
def test_incremental_decisions_equal_decisions_after_fresh_start(jobs: list[Any], steps: list[Any], often: int) -> None:
    stage = Stage()
    for number, job in enumerate(jobs):
        stage.happen("job", number, job)
    for number, step in enumerate(steps):
        stage.happen(*step)
        if number % often == 0:
            stage.rest()
            said = stage.said()
            note(f"after {number}: {said}")
            assert said == stage.said_anew()

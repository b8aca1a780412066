from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from tests.core.builders import START, replicas, template, v1_job, volcano_job
from tests.core.gang.gangs import gangs_of
from tests.core.gang.stored import ADMITTED, admitter_of, container, job, node, pod, seen, verdicts
from tests.core.world import World as Small
from tf_dist.core.gang.admission import AdmissionChanges
from tf_dist.core.gang.cache import nodes_by_index
from tf_dist.core.gang.placement.predicates import REFUSED_NODES
from tf_dist.core.gang.resources.pod_requests import pod_limits, pod_requests, pod_sets
from tf_dist.core.gang.types import (
    NO_ADMISSION_CONFIG,
    AdmissionConfig,
    AdmissionRequest,
    AssignedPods,
    Gang,
    PriorityClass,
    RuntimeClass,
    TopologyRequest,
)
from tf_dist.core.model.assignment import Admit
from tf_dist.core.model.gang_queue import Queue, Quota
from tf_dist.core.model.job import Action, Event, JobKey, ReplicaId, ReplicaSpec, Rule, RunPolicy
from tf_dist.core.model.status import Admission, Counts, Phase, Status


def limit(cpu: str) -> dict[str, Any]:
    return {"resources": {"limits": {"cpu": cpu}}}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({}, None),
        ({"containers": [{}]}, None),
        ({"containers": [container(cpu="1"), container(cpu="500m")]}, "1.5"),
        ({"containers": [{"resources": {"limits": {"cpu": "2"}}}]}, "2"),
        ({"containers": [{"resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}}]}, "1"),
        ({"containers": [container(cpu="1")], "initContainers": [container(cpu="3"), container(cpu="2")]}, "3"),
        ({"containers": [container(cpu="4")], "initContainers": [container(cpu="3")]}, "4"),
        ({"containers": [container(cpu="1")], "initContainers": [container("Always", cpu="2")]}, "3"),
        (
            {"containers": [container(cpu="1")], "initContainers": [container("Always", cpu="2"), container(cpu="3")]},
            "5",
        ),
        ({"containers": [container(cpu="1")], "overhead": {"cpu": "250m"}}, "1.25"),
        # Sidecars run together with the containers and with init containers after them, but not with those before them.
        (
            {
                "containers": [container(cpu="1")],
                "initContainers": [container(cpu="5"), container("Always", cpu="2"), container("Always", cpu="1")],
            },
            "5",
        ),
        (
            {
                "containers": [container(cpu="1")],
                "initContainers": [container("Always", cpu="2"), container(cpu="5"), container("Always", cpu="9")],
            },
            "12",
        ),
        # Pod-level resources replace those of the containers.
        ({"resources": {"requests": {"cpu": "4"}}, "containers": [container(cpu="1")]}, "4"),
        ({"resources": {"requests": {"cpu": "1"}}, "containers": [container(cpu="3")]}, "1"),
        ({"resources": {"limits": {"cpu": "4"}}, "containers": [{}]}, "4"),
        ({"resources": {"limits": {"cpu": "4"}}, "containers": [container(cpu="1")]}, "1"),
        ({"resources": {"limits": {"cpu": "4"}, "requests": {"cpu": "2"}}, "containers": [{}]}, "2"),
        ({"resources": {"requests": {"cpu": "4"}}, "containers": [container(cpu="1")], "overhead": {"cpu": "1"}}, "5"),
        ({"resources": {"requests": {"nvidia.com/gpu": "4"}}, "containers": [container(cpu="1")]}, "1"),
    ],
)
def test_pod_requests_match_kubernetes_scheduler(spec: Any, cpu: str | None) -> None:
    expected = {"pods": Decimal(1)} | ({} if cpu is None else {"cpu": Decimal(cpu)})
    assert pod_requests(spec) == expected


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({"containers": [container(cpu="1")]}, None),
        ({"containers": [limit("2"), limit("1")]}, "3"),
        ({"containers": [limit("2")], "initContainers": [limit("5")]}, "5"),
        ({"containers": [limit("2")], "overhead": {"cpu": "250m"}}, "2.25"),
        ({"containers": [container(cpu="1")], "overhead": {"cpu": "250m"}}, None),
        ({"resources": {"limits": {"cpu": "8"}}, "containers": [limit("2")]}, "8"),
    ],
)
def test_pod_limits_add_up_like_requests(spec: Any, cpu: str | None) -> None:
    assert pod_limits(spec).get("cpu") == (None if cpu is None else Decimal(cpu))


def test_pod_level_resources_exclude_devices() -> None:
    stated = {"cpu": "2", "memory": "4", "hugepages-2Mi": "8", "nvidia.com/gpu": "1"}
    kept = {"cpu": Decimal(2), "memory": Decimal(4), "hugepages-2Mi": Decimal(8)}
    spec = {"resources": {"requests": stated, "limits": stated}, "containers": [{}]}
    assert pod_requests(spec) == {**kept, "pods": Decimal(1)}
    assert pod_limits(spec) == kept


def test_runtime_class_adds_overhead_if_template_has_none() -> None:
    classes = {"sandbox": RuntimeClass(overhead={"cpu": "500m"})}

    def asked(**spec: Any) -> Decimal:
        pod = template(containers=[container(cpu="1")], **spec)
        [worker] = pod_sets(v1_job(replicas("Worker", 2, template=pod)), AdmissionConfig(runtime_classes=classes))
        return worker.requests["cpu"]

    assert asked() == 1
    assert asked(runtimeClassName="sandbox") == Decimal("1.5")
    assert asked(runtimeClassName="another") == 1
    assert asked(runtimeClassName="sandbox", overhead={"cpu": "2"}) == 3


def test_runtime_class_adds_node_selector_and_tolerations() -> None:
    toleration = {"key": "sandbox", "operator": "Exists"}
    classes = {"sandbox": RuntimeClass(node_selector={"runtime": "gvisor"}, tolerations=(toleration,))}
    pod = template(containers=[container(cpu="1")], runtimeClassName="sandbox", nodeSelector={"pool": "a"})
    [worker] = pod_sets(v1_job(replicas("Worker", 2, template=pod)), AdmissionConfig(runtime_classes=classes))
    assert worker.constraints == {"nodeSelector": {"pool": "a", "runtime": "gvisor"}, "tolerations": [toleration]}


@pytest.mark.parametrize(
    ("ps", "worker", "job_class", "start"),
    [
        ({}, {}, "", (2, 1)),
        ({}, {"class": "high"}, "", (0, 3)),
        ({}, {"class": "unknown"}, "", (2, 1)),
        ({"class": "low"}, {}, "", (0, 3)),
        ({"class": "low"}, {}, "low", (2, 1)),
        ({}, {"said": "7"}, "", (0, 3)),
        ({"class": "high"}, {"said": "7"}, "", (2, 1)),
        ({"class": "high", "said": "-1"}, {}, "", (0, 3)),
        ({}, {"said": "many"}, "", (2, 1)),
        ({}, {"said": str(2**31)}, "", (2, 1)),
    ],
)
def test_minimum_consists_of_pods_with_highest_priority(
    ps: dict[str, str], worker: dict[str, str], job_class: str, start: tuple[int, int]
) -> None:
    """Volcano's ``priority`` plugin orders the tasks of a job in the same way."""

    def spec(name: str, count: int, said: dict[str, str]) -> ReplicaSpec:
        pod = template(**({"priorityClassName": said["class"]} if "class" in said else {}))
        notes = {"annotations": {"volcano.sh/task-priority": said["said"]}} if "said" in said else {}
        return replicas(name, count, template={**pod, "metadata": notes}, min_available=0, rules=())

    job = volcano_job(spec("ps", 2, ps), spec("worker", 4, worker), min_available=3)
    job = replace(job, scheduling=replace(job.scheduling, priority_class=job_class))
    classes = {"low": PriorityClass(-10), "high": PriorityClass(100)}
    assert tuple(found.start for found in pod_sets(job, AdmissionConfig(priorities=classes))) == start


def test_gang_requests_all_replicas() -> None:
    assert [(m.type, m.count, m.least, m.most) for m in pod_sets(job())] == [("ps", 1, 1, 1), ("worker", 2, 2, 2)]


def free(*pods: Any) -> Decimal:
    return seen(admitter_of([], [node()], pods)).nodes["n"].free["cpu"]


def test_bound_pods_use_capacity_until_they_end() -> None:
    assert free() == 8
    assert free(pod(), pod(phase="Pending")) == 6
    assert free(pod(phase="Succeeded"), pod(phase="Failed"), pod(on=None)) == 8


def test_nodes_that_accept_no_pods_are_ignored() -> None:
    nodes = [node("a"), node("b", ready="Unknown"), node("c", unschedulable=True), {"metadata": {"name": "bare"}}]
    assert list(seen(admitter_of([], nodes)).nodes) == ["a", "bare"]


def one(status: Status, *pods: Any, changed: Any = None, config: AdmissionConfig = NO_ADMISSION_CONFIG) -> Gang:
    request = AdmissionRequest(changed or job(), status, START)
    [found] = seen(admitter_of([request], [node()], pods, config=config)).gangs.values()
    return found


def test_gang_has_assigned_nodes_and_bound_pods() -> None:
    there = [pod(owner="uid-mnist", index=1), pod(on=None, owner="uid-mnist"), pod(owner="another")]
    found = one(ADMITTED, *there)
    assert found.assigned == AssignedPods(
        at=START, sizes={"ps": 1, "worker": 2}, placement={"worker": {"n": 1, "m": 1}}, resized=START + 9
    )
    assert found.bound == {"worker": {"n": 1}}
    assert found.pod_nodes["worker"] == ("m", "n")  # worker 0 is assigned to m, worker 1 is bound to n


def test_assigned_node_that_a_pod_uses_is_no_other_replicas() -> None:
    """Worker 0 lost its node, and may go to any node. The only assigned node is that of worker 1."""
    assert ADMITTED.admission is not None
    status = replace(ADMITTED, admission=replace(ADMITTED.admission, placement={"worker": {"n": 1}}))
    found = one(status, pod(owner="uid-mnist", index=1))
    assert found.pod_nodes["worker"] == ("", "n")
    assert nodes_by_index(found, "worker") == ["", "n"]


@pytest.mark.parametrize(
    ("placement", "vacated"),
    [({"n": 1, "m": 1}, {"m": 1}), ({"n": 1}, {}), ({"m": 1}, {}), ({}, {})],
    ids=["each has a node", "one of them lost its node", "one of them lost its node, too", "no node is assigned"],
)
def test_node_of_replica_that_continues_is_not_vacated(placement: dict[str, int], vacated: dict[str, int]) -> None:
    assert ADMITTED.admission is not None
    there = replace(ADMITTED.admission, placement={"worker": placement} if placement else {})
    found = one(replace(ADMITTED, admission=there, succeeded=frozenset({ReplicaId("worker", 0)})))
    assert found.vacated["worker"] == vacated


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("on", ["n", "m"])
def test_vacated_node_is_that_of_ended_pod_whatever_its_index(index: int, on: str) -> None:
    """The gang may have grown in the meantime, which changes the nodes by index."""
    done = frozenset({ReplicaId("worker", index)})
    other = "m" if on == "n" else "n"
    pods = pod(on, "Succeeded", "uid-mnist", index=index), pod(other, owner="uid-mnist", index=1 - index)
    for there in pods, pods[:1], pods[1:]:
        assert one(replace(ADMITTED, succeeded=done), *there).vacated["worker"] == {on: 1}


@pytest.mark.parametrize(
    ("status", "timeout", "tried"),
    [
        (Status(), 60.0, [(0, None), (1, 60.0), (2, 60.0)]),
        (Status(), None, [(0, None)]),
        (Status(fallback_from=1), 60.0, [(1, None), (2, 0.0), (0, 60.0)]),  # after a disruption of the primary request
        (Status(fallback_from=1), None, [(1, None), (2, 0.0)]),
        (ADMITTED, 60.0, [(0, None)]),
    ],
)
def test_waiting_gang_has_fallbacks_with_their_start_times(
    status: Status, timeout: float | None, tried: list[tuple[int, float | None]]
) -> None:
    plain = job()
    asked = replace(plain.scheduling, admission_timeout=timeout)
    smaller = [replace(plain, replica_specs=(replicas("Worker", number),)) for number in (2, 1)]
    found = one(status, changed=replace(plain, scheduling=asked, fallbacks=tuple(smaller)))
    later = [(gang.fallback, gang.tried_from - START if gang.tried_from else 0.0) for gang in found.fallbacks]
    assert [(found.fallback, None), *later] == tried
    assert [gang.fallback_of for gang in found.fallbacks] == [found.uid] * len(later)


def test_bound_pods_are_counted_without_admission() -> None:
    found = one(Status(not_before=START + 60), pod(owner="uid-mnist"))
    assert (found.assigned, found.bound, found.not_before) == (None, {"worker": {"n": 1}}, START + 60)


def test_succeeded_replicas_count_as_done() -> None:
    done = Status(phase=Phase.RUNNING, admission=Admission(START), succeeded=frozenset({ReplicaId("worker", 1)}))
    assert one(done).done == {"worker": 1}


def test_finished_replica_without_assigned_node_vacates_none() -> None:
    place = Admission(START, placement={"worker": {"n": 1}})
    found = one(Status(phase=Phase.RUNNING, admission=place, succeeded=frozenset({ReplicaId("worker", 1)})))
    assert (found.problem, found.done, found.vacated) == ("", {"worker": 1}, {"worker": {}})


@pytest.mark.parametrize(("done", "free"), [(0, "m"), (1, "n")])
def test_only_node_of_finished_replica_is_given_to_other_gangs(done: int, free: str) -> None:
    cpu = template(containers=[{"name": "tensorflow", "image": "tf", **container(cpu="1")}])
    holder = v1_job(replicas("worker", 2, template=cpu))
    other = replace(v1_job(replicas("worker", 1, template=cpu)), uid="uid-other", key=JobKey("default", "other"))
    status = Status(
        phase=Phase.RUNNING,
        succeeded=frozenset({ReplicaId("worker", done)}),
        admission=Admission(START, sizes={"worker": 2}, placement={"worker": {"m": 1, "n": 1}}),
    )
    claims = [AdmissionRequest(holder, status, START), AdmissionRequest(other, Status(), START)]
    whole = [{**node(name), "status": {"allocatable": {"cpu": "1", "pods": "9"}}} for name in ("m", "n")]
    verdict = verdicts(admitter_of(claims, whole), START)[other.uid]
    assert isinstance(verdict, Admit)
    assert verdict.placement == {"worker": {free: 1}}


@pytest.mark.parametrize("stays", [True, False], ids=["its sidecar runs on", "its pod has ended"])
def test_capacity_of_finished_replica_is_free_after_its_pod_ends(stays: bool) -> None:
    """A v1alpha1 job judges only one of several containers. The other worker of the job is being recreated."""
    holder, other = job(), replace(job(), uid="uid-other", key=JobKey("default", "other"))
    status = Status(
        phase=Phase.RUNNING,
        succeeded=frozenset({ReplicaId("worker", 0)}),
        admission=Admission(START, placement={"worker": {"n": 2}, "ps": {"n": 1}}),
    )
    claims = [AdmissionRequest(holder, status, START), AdmissionRequest(other, Status(), START)]
    there = [pod(owner=holder.uid), pod(owner=holder.uid, type_="ps")][not stays :]
    whole = [{**node(), "status": {"allocatable": {"cpu": "5", "pods": "9"}}}]
    verdict = verdicts(admitter_of(claims, whole, there), START)[other.uid]
    assert isinstance(verdict, Admit) is not stays


WAITING_POLICY = Rule(events=frozenset({Event.POD_FAILED}), action=Action.RESTART_TASK, timeout=60.0)


@pytest.mark.parametrize(
    ("policy", "done"),
    [
        (None, 2),  # no policy matches the failure: the pod has ended for good, like the succeeded pod
        (WAITING_POLICY, 1),  # the pod may be recreated
        (replace(WAITING_POLICY, events=frozenset({Event.POD_EVICTED})), 1),
        (replace(WAITING_POLICY, events=frozenset({Event.TASK_FAILED})), 2),
        (replace(WAITING_POLICY, timeout=0.0), 2),  # the action would have been taken already
        (replace(WAITING_POLICY, action=Action.ABORT_JOB), 2),  # the job will end without a new pod
    ],
)
@pytest.mark.parametrize("of_job", [True, False])
def test_permanently_failed_replicas_use_no_capacity(policy: Rule | None, done: int, of_job: bool) -> None:
    rules = (policy,) if policy else ()
    changed = job()
    specs = tuple(replace(spec, rules=() if of_job else rules) for spec in changed.replica_specs)
    status = Status(
        phase=Phase.RUNNING,
        admission=Admission(START),
        succeeded=frozenset({ReplicaId("worker", 1)}),
        counts={"worker": Counts(running=1, succeeded=1, failed=1), "ps": Counts(running=1)},
    )
    found = one(status, changed=replace(changed, replica_specs=specs, rules=rules if of_job else ()))
    assert found.done == {"worker": done}
    assert found.assigned is not None


def test_permanently_failed_pod_frees_capacity_until_job_restarts() -> None:
    """The job continues without its second worker, until a parameter server is lost."""
    lost = Rule(events=frozenset({Event.POD_EVICTED}), action=Action.RESTART_JOB)
    cpu = template(containers=[{"name": "tensorflow", "image": "tf", **container(cpu="1")}])
    specs = (replicas("ps", 1, rules=(lost,), template=cpu), replicas("worker", 2, rules=(), template=cpu))
    world = Small(volcano_job(*specs))
    world.settle()
    for body in world.pods.values():
        world.run(body)
    world.settle()

    def cores() -> tuple[Decimal, Decimal]:
        """The job's usage in its queue, and the free CPUs of the node on which all its pods run."""
        queues = (Queue(name="default", quotas={"cpu": Quota(nominal=Decimal(8))}),)
        requests = [AdmissionRequest(world.job, world.memory, START)]
        admitter = admitter_of(requests, [node("n1")], world.pods.values(), config=AdmissionConfig(queues=queues))
        admitter.cycle(START)
        return admitter.queue_usages()["default"].used["cpu"], seen(admitter).nodes["n1"].free["cpu"]

    assert cores() == (3, 5)
    world.end(world.pods["tf-dist-mnist-worker-1"], 1)
    world.settle()
    assert (world.memory.phase, world.memory.counts["worker"].failed) == (Phase.RUNNING, 1)
    assert cores() == (2, 6)
    world.remove(world.pods["tf-dist-mnist-ps-0"])
    world.settle()
    assert cores() == (3, 5)


@pytest.mark.parametrize("phase", [Phase.COMPLETED, Phase.FAILED, Phase.ABORTED, Phase.COMPLETING])
def test_job_that_is_not_live_has_no_gang(phase: Phase) -> None:
    assert not seen(admitter_of([AdmissionRequest(job(), Status(phase=phase), START)], [node()])).gangs


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("5400", 5400),
        ("90m", 5400),
        ("1h30m", 5400),
        (" 1.5h ", 5400),
        ("250ms", 0.25),
        ("0", None),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1h 30m", None),
        ("1d", None),
        ("h", None),
    ],
)
def test_expected_duration_is_seconds_or_duration(text: str, found: float | None) -> None:
    said = replace(job(), annotations={"tf-dist.dev/expected-duration": text})
    assert one(Status(), changed=said).estimate == found


def test_deadline_is_default_estimate() -> None:
    limited = replace(job(), run_policy=RunPolicy(active_deadline=600))
    assert one(Status(), changed=limited).estimate == 600


def test_topology_annotations_set_locality() -> None:
    wished = {"tf-dist.dev/topology": "topology.kubernetes.io/zone"}
    assert one(Status(), changed=replace(job(), annotations=wished)).locality == TopologyRequest(
        label="topology.kubernetes.io/zone"
    )
    needed = {**wished, "tf-dist.dev/topology-required": "true"}
    assert one(Status(), changed=replace(job(), annotations=needed)).locality == TopologyRequest(
        label="topology.kubernetes.io/zone", required=True
    )
    assert one(Status()).locality is None


def test_priority_comes_from_class_then_queue_then_default_class() -> None:
    classes = {"high": PriorityClass(100, preempts=False), "": PriorityClass(7)}
    rules = AdmissionConfig(queues=(Queue(name="team", default_priority=5),), priorities=classes)

    def asked(class_: str, queue: str = "") -> tuple[int, bool]:
        scheduling = replace(job().scheduling, priority_class=class_, queue=queue)
        found = one(Status(), changed=replace(job(), scheduling=scheduling), config=rules)
        return found.priority, found.preempts

    assert asked("high") == (100, False)
    assert asked("unknown") == (7, True)
    assert asked("", "team") == (5, True)
    assert asked("high", "team") == (100, False)
    assert asked("") == (7, True)


def test_refused_nodes_are_excluded_for_all_members() -> None:
    assert all(REFUSED_NODES not in member.constraints for member in one(Status()).members)
    found = one(Status(refused_nodes={"n2": START + 60, "n1": START + 30}))
    assert [member.constraints[REFUSED_NODES] for member in found.members] == [["n1", "n2"]] * 2


def test_changed_priority_class_updates_unchanged_gangs() -> None:
    admitter = admitter_of([AdmissionRequest(job(), Status(), START)])
    admitter.update(AdmissionChanges(config=AdmissionConfig(priorities={"": PriorityClass(7)})))
    admitter.refresh()
    [found] = gangs_of(admitter.scheduler)
    assert found.priority == 7
    admitter.update(AdmissionChanges(config=AdmissionConfig(priorities={"": PriorityClass(7)})))
    admitter.refresh()
    assert gangs_of(admitter.scheduler)[0] is found


def test_preempting_gang_is_nominated() -> None:
    assert one(Status(reason="Preempting")).nominated
    assert not one(Status(reason="WaitingForCapacity")).nominated

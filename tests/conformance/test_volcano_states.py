"""Volcano's state machine and its end-to-end flows, under their original names (volcano-sh/volcano at ed72c7c8).

``pkg/controllers/job/job_state_test.go`` defines the next phase of a job in each phase; ``test_volcano_commands`` tests
the Commands in each phase. ``test/e2e/jobseq`` and ``test/e2e/jobp`` define the sequence of phases of a job. Rows name
deliberate differences of tf-dist; see docs/differences-volcano.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.test_volcano_commands import in_phase
from tests.conformance.test_volcano_lifecycle import crash_in_place, end, job, lose, phase, run, started, task
from tests.core.world import World
from tf_dist.core.dialects import read
from tf_dist.core.integrations.dispatch import decorate_pod, planned_context, wanted_objects
from tf_dist.core.model.status import Status
from tf_dist.core.podbuilder import replica_pod, services
from tf_dist.core.reconciler.accepted_spec import read_stored_spec

Doc = dict[str, Any]
P, R, S, F = "Pending", "Running", "Succeeded", "Failed"


def found_with(*states: str, least: int = 0) -> World:
    """A job of one task whose pods have these states."""
    minimum = {"minAvailable": least} if least else {}
    world = World(read(job(task("task1", len(states), **minimum), **minimum)))
    world.settle()
    for index, state in enumerate(states):
        pod = world.pod(f"task1-{index}")
        if state != P:
            world.run(pod)
        if state in (S, F):
            world.end(pod, int(state == F))
    world.settle()
    return world


# The rows without an action (SyncJob, EnqueueJob): the counts of pods decide.
NUMBERS = {
    "PendingState- EnqueueAction case With Min Available equal to running pods": ([R, R, R], 3, "Running"),
    "PendingState- EnqueueAction case With Min Available not equal to running pods": ([R, R, P], 3, "Pending"),
    "PendingState- Default case With Min Available equal to running pods": ([R, R, P], 3, "Pending"),
    "RunningState- Default case and Total is equal to failed+succeeded": ([S, S], 0, "Completed"),
    "RunningState- Default case and Total is not equal to failed+succeeded": ([S, R], 0, "Running"),
    "RunningState- Default case and running back to pending When pending equal to total": ([P] * 5, 3, "Pending"),
    "RunningState- Default case and running back to pending When pods status pending>(total-minAvailable)": (
        [P, P, P, R, R],
        3,
        "Pending",
    ),
    "RunningState- Default case and keep running When pods status pending<=(total-minAvailable)": (
        [P, P, R, S, F],
        3,
        "Running",
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_counts_of_pods_decide_phase(name: str) -> None:
    states, least, expected = NUMBERS[name]
    assert phase(found_with(*states, least=least)) == expected


@pytest.mark.parametrize(
    ("name", "retries", "expected"),
    [
        ("RestartingState- RetryCount is equal to or greater than MaxRetry", 1, "Failed"),
        ("RestartingState- RetryCount is less than MaxRetry", 3, "Pending"),
    ],
)
def test_restart_within_limit_leads_to_pending(name: str, retries: int, expected: str) -> None:
    policies = ({"event": "PodFailed", "action": "RestartJob"},)
    world = started(job(task("task1", 1), task("task2", 1), policies=policies, maxRetry=retries, minAvailable=1))
    end(world, "task1-0")
    world.now += 1000
    world.settle()
    assert (phase(world), world.status["retryCount"]) == (expected, 1), name


@pytest.mark.parametrize("stopped", ["Aborting", "Completing", "Terminating"])
def test_stopping_job_has_stopped_once_its_pods_are_gone(stopped: str) -> None:
    """``With pod count (not) equal to zero``. Finished pods are kept."""
    world = in_phase(stopped)
    assert world.pods
    assert phase(world) == stopped
    world.settle()
    assert phase(world) == {"Aborting": "Aborted", "Completing": "Completed", "Terminating": "Terminated"}[stopped]
    assert not world.pods


def policy(event: str | list[str], action: str, **more: Any) -> Doc:
    return (
        {"events": event, "action": action, **more} if isinstance(event, list) else {"event": event, "action": action}
    )


FAIL: Callable[[World], None] = lambda world: end(world, "b-0", code=3)  # noqa: E731
LOSE: Callable[[World], None] = lambda world: lose(world, "b-0")  # noqa: E731
DONE: Callable[[World], None] = lambda world: end(world, "b-0", "b-1", code=0)  # noqa: E731
CRASH: Callable[[World], None] = lambda world: crash_in_place(world, "b-0", 4)  # noqa: E731
LATER = {"event": "PodEvicted", "action": "TerminateJob", "timeout": "5m"}
OF_TASK = "Task level"
# test/e2e/jobseq/job_error_handling.go: the policies (of task b, if the name says so), the event, the final phase.
FLOWS: dict[str, tuple[list[Doc], Callable[[World], None], str]] = {
    "job level, Event: PodFailed; Action: RestartJob": ([policy("PodFailed", "RestartJob")], FAIL, "Running"),
    "job level, Event: PodFailed; Action: TerminateJob": ([policy("PodFailed", "TerminateJob")], FAIL, "Terminated"),
    "job level, Event: PodFailed; Action: AbortJob": ([policy("PodFailed", "AbortJob")], FAIL, "Aborted"),
    "job level, PodFailed: RestartPod; PodEvicted: TerminateJob, Timeout: 5m": (
        [policy("PodFailed", "RestartPod"), LATER],
        FAIL,
        "Running",
    ),
    "job level, Event: PodEvicted; Action: RestartJob": ([policy("PodEvicted", "RestartJob")], LOSE, "Running"),
    "job level, Event: PodEvicted; Action: TerminateJob": ([policy("PodEvicted", "TerminateJob")], LOSE, "Terminated"),
    "job level, Event: PodEvicted; Action: AbortJob": ([policy("PodEvicted", "AbortJob")], LOSE, "Aborted"),
    "job level, Event: Any; Action: RestartJob": ([policy("*", "RestartJob")], LOSE, "Running"),
    "job level, Event: TaskCompleted; Action: CompletedJob": (
        [policy("TaskCompleted", "CompleteJob")],
        DONE,
        "Completed",
    ),
    "job level, Event: TaskFailed; Action: TerminateJob": ([policy("TaskFailed", "TerminateJob")], CRASH, "Terminated"),
    "job level, error code: 3; Action: RestartJob": ([{"exitCode": 3, "action": "RestartJob"}], FAIL, "Running"),
    "job level, Event[]: PodEvicted, PodFailed; Action: TerminateJob": (
        [policy(["PodEvicted", "PodFailed"], "TerminateJob")],
        LOSE,
        "Terminated",
    ),
    "Task level, Event: PodFailed; Action: RestartJob": ([policy("PodFailed", "RestartJob")], FAIL, "Running"),
    "Task level, Event: PodEvicted; Action: RestartJob": ([policy("PodEvicted", "RestartJob")], LOSE, "Running"),
    "Task level, Event: PodEvicted; Action: TerminateJob": ([policy("PodEvicted", "TerminateJob")], LOSE, "Terminated"),
    "Task level, Event: TaskCompleted; Action: CompletedJob": (
        [policy("TaskCompleted", "CompleteJob")],
        DONE,
        "Completed",
    ),
}
THROUGH = {"Running": "Restarting", "Terminated": "Terminating", "Aborted": "Aborting", "Completed": "Completing"}


@pytest.mark.parametrize("name", FLOWS)
def test_error_handling(name: str) -> None:
    policies, happens, ends = FLOWS[name]
    restart = "OnFailure" if happens is CRASH else "Never"
    tasks = [task("a", 2), task("b", 2, *(policies if name.startswith(OF_TASK) else ()), restart=restart)]
    world = started(job(*tasks, policies=() if name.startswith(OF_TASK) else tuple(policies)))
    assert phase(world) == "Running"
    happens(world)
    world.now += 1000
    run(world)
    assert phase(world) == ends
    written = [one["status"] for one in world.status["conditions"]]
    assert THROUGH[ends] in written, "through the phase before it"


def test_policy_of_task_overrides_policy_of_job() -> None:
    """``PodFailed; Action: AbortJob and Task level lifecyclePolicy, PodFailed; Action: RestartJob``."""
    tasks = task("a", 2), task("b", 2, policy("PodFailed", "RestartJob"))
    world = started(job(*tasks, policies=(policy("PodFailed", "AbortJob"),)))
    FAIL(world)
    run(world)
    assert (phase(world), world.status["retryCount"]) == ("Running", 1)


@pytest.mark.parametrize(
    ("action", "through", "expected"), [("RestartJob", "Restarting", "Pending"), ("AbortJob", "Aborting", "Aborted")]
)
def test_policy_handles_unschedulable_job(action: str, through: str, expected: str) -> None:
    """``Restart job when job is unschedulable``, ``Abort job …``: nodes are tainted, and one pod is killed."""
    world = started(job(task("test", 3), policies=(policy("Unknown", action),)))
    world.schedules = False
    lose(world, "test-0")
    world.hold_back(world.pod("test-0"))
    world.settle()
    assert phase(world) == expected
    assert through in [one["status"] for one in world.status["conditions"]]


RESTARTS = [policy("PodEvicted", "RestartJob"), policy("PodFailed", "RestartJob")]


def test_retain_failed_pod_on_last_retry() -> None:
    """jobp/job_restart.go: with maxRetry 2, the job fails with a retryCount of 2. Only the failed pod is kept."""
    tasks = task("running-task", 1), task("failed-task", 1)
    world = started(job(*tasks, policies=tuple(RESTARTS), maxRetry=2, minSuccess=2, minAvailable=2))
    for _ in range(2):
        end(world, "failed-task-0")
        world.now += 1000
        run(world)
    assert (phase(world), world.status["retryCount"]) == ("Failed", 2)
    assert set(world.pods) == {"job1-failed-task-0"}


def test_retain_succeeded_pod_when_job_complete() -> None:
    """jobp/job_restart.go: TaskCompleted completes the job, although minSuccess is not reached."""
    tasks = task("running-task", 1), task("succeeded-task", 1, policy("TaskCompleted", "CompleteJob"))
    world = started(job(*tasks, policies=tuple(RESTARTS), maxRetry=1, minSuccess=2, minAvailable=2))
    end(world, "succeeded-task-0", code=0)
    assert (phase(world), world.status["retryCount"]) == ("Completed", 0)
    assert set(world.pods) == {"job1-succeeded-task-0"}


def test_min_success() -> None:
    """jobp/min_success.go."""
    world = started(job(task("short", 3, minAvailable=1), task("log", 2, minAvailable=1), minSuccess=2))
    end(world, "short-0", code=0)
    assert phase(world) == "Running"
    end(world, "short-1", code=0)
    assert phase(world) == "Completed"


@pytest.mark.parametrize(("before", "after"), [(2, 4), (2, 1)])
def test_scale_up_and_down(before: int, after: int) -> None:
    """jobp/job_scale_up_down.go: pods and the files of the svc plugin follow, and nothing restarts."""
    world = started(job(task("default", before), plugins={"svc": []}))
    uids = {name: pod["metadata"]["uid"] for name, pod in world.pods.items()}
    world.job = read(job(task("default", after), plugins={"svc": []}))
    world.settle()
    run(world)
    assert set(world.pods) == {f"job1-default-{index}" for index in range(after)}
    assert all(uids.get(name, pod["metadata"]["uid"]) == pod["metadata"]["uid"] for name, pod in world.pods.items())
    hosts = world.objects["ConfigMap", "job1-svc"]["data"]["default.host"].split()
    assert hosts == [f"job1-default-{index}.job1" for index in range(after)]
    assert (phase(world), world.status["retryCount"]) == ("Running", 0)


def test_scale_down_to_zero() -> None:
    """jobp/job_scale_up_down.go: in Volcano, the job stays Running without pods. Here, the last spec stays in force."""
    stored = {**job(task("default", 2)), "metadata": {"name": "job1", "namespace": "default", "uid": "uid-1"}}
    first = read_stored_spec(stored, Status())
    nothing = {**stored, "spec": {"tasks": [task("default", 0, minAvailable=0)], "minAvailable": 0}}
    found = read_stored_spec(nothing, Status(accepted_spec=first.accepted), (stored, first))
    assert found.job == first.job
    assert found.refused is not None
    assert found.refused.message.startswith("spec.tasks: there are no replicas at all")


def made_for(**plugins: list[str]) -> tuple[Doc, dict[str, set[str]]]:
    """The pod of a job with these plugins, and the names of its other objects by kind."""
    container = {"name": "main", "image": "x"}
    pod = {"restartPolicy": "Never", "containers": [container], "initContainers": [{**container, "name": "first"}]}
    found = read(job({"name": "task", "replicas": 1, "template": {"spec": pod}}, plugins=plugins))
    objects: dict[str, set[str]] = {}
    for body in services.build_objects(found):
        objects.setdefault(body["kind"], set()).add(body["metadata"]["name"])
    return replica_pod.build_pod(found, found.replicas[0], "1.0.0"), objects


def variables(pod: Doc) -> list[set[str]]:
    """The environment of each container, including init containers."""
    containers = [*pod["spec"]["containers"], *pod["spec"]["initContainers"]]
    return [{one["name"] for one in container.get("env", ())} for container in containers]


HOSTS = {"VC_TASK_HOSTS", "VC_TASK_NUM"}


def test_svc_plugin_with_disable_network_policy() -> None:
    """jobseq/job_plugins.go."""
    _, objects = made_for(svc=["--disable-network-policy=true"])
    assert "NetworkPolicy" not in objects
    assert made_for(svc=[])[1]["NetworkPolicy"] == {"job1"}


def test_svc_plugin_with_inject_hosts_env_disabled() -> None:
    """jobseq/job_plugins.go."""
    pod, objects = made_for(svc=["--inject-hosts-env=false"])
    assert objects["ConfigMap"] == {"job1-svc"}
    assert not any(HOSTS & names for names in variables(pod))


def test_functionality_of_all_plugins() -> None:
    """jobseq/job_plugins.go, with an argument of an older ssh plugin, which Volcano does not read either."""
    pod, objects = made_for(ssh=["--no-root"], env=[], svc=[])
    assert "job1-ssh" in {volume["name"] for volume in pod["spec"]["volumes"]}
    assert all({"VK_TASK_INDEX", "VC_TASK_INDEX", *HOSTS} <= names for names in variables(pod))
    assert objects["Service"] == {"job1"}


@pytest.mark.parametrize("scheduler", ["", "volcano"])
def test_pod_names_its_pod_group(scheduler: str) -> None:
    """createJobPod: ``scheduling.k8s.io/group-name`` names the PodGroup. Without Volcano, there is none."""
    document = job(task("worker", 1))
    document["metadata"]["annotations"] = {"tf-dist.dev/gang-scheduler": scheduler} if scheduler else {}
    found = read(document)
    context = planned_context(found)
    pod = replica_pod.build_pod(found, found.replicas[0], "1.0.0")
    decorate_pod(context, found.replicas[0], pod)
    groups = [body["metadata"]["name"] for body in wanted_objects(context)]
    named = pod["metadata"]["annotations"].get("scheduling.k8s.io/group-name")
    assert [named] == (groups if scheduler else [None])

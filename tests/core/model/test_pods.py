from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.builders import observed, pod, replicas, running, v1_job
from tf_dist.core.model.context import Observed
from tf_dist.core.model.job import ReplicaId
from tf_dist.core.model.pods import Exit, PodPhase, PodView, pod_view
from tf_dist.core.model.status_codec import dump_status, load_status
from tf_dist.core.reconciler.job_context import read_context
from tf_dist.core.reconciler.reconcile import reconcile
from tf_dist.core.reconciler.restarts import keep_container_restarts

LABELS = {"tf-dist.dev/replica-type": "worker", "tf-dist.dev/replica-index": "1", "tf-dist.dev/attempt": "1.0.0"}


def raw(status: Any = None, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", "labels": LABELS, **metadata}, "status": status}


@pytest.mark.parametrize(
    "labels",
    [
        None,
        {},
        {"tf-dist.dev/replica-type": "worker"},
        {"tf-dist.dev/replica-index": "1"},
        {**LABELS, "tf-dist.dev/replica-index": ""},
        {**LABELS, "tf-dist.dev/replica-index": "one"},
        {**LABELS, "tf-dist.dev/replica-index": "-1"},
        {**LABELS, "tf-dist.dev/replica-index": "²"},
    ],
)
def test_pod_without_replica_labels_is_ignored(labels: Any) -> None:
    assert pod_view(raw(labels=labels)) is None


@pytest.mark.parametrize(
    "status",
    [
        None,
        {},
        {"phase": None},
        {"phase": "Nonsense"},
        {"phase": "Pending", "containerStatuses": None, "conditions": None},
        {"phase": "Pending", "containerStatuses": [{}], "conditions": [{}]},
        {"phase": "Pending", "containerStatuses": [{"state": None, "lastState": None, "restartCount": None}]},
    ],
)
def test_pod_without_valid_status_is_pending(status: Any) -> None:
    view = pod_view({**raw(status), "spec": None}, "tensorflow")
    assert view is not None
    assert (view.phase, view.exit, view.restarts, view.ready, view.node) == (PodPhase.PENDING, None, 0, False, "")


@pytest.mark.parametrize(
    ("waiting", "ready", "inits", "pulling"),
    [
        ("ContainerCreating", "True", [], True),
        ("ContainerCreating", "False", [], False),  # volumes, network
        ("ContainerCreating", None, [], False),  # a kubelet that does not report the condition
        ("ErrImagePull", "True", [], False),
        ("PodInitializing", "True", [{"terminated": {"exitCode": 0}}], True),
        ("PodInitializing", "True", [{"running": {}}], False),
    ],
)
def test_pod_that_only_waits_for_its_image_is_pulling(
    waiting: str, ready: str | None, inits: Any, pulling: bool
) -> None:
    conditions = [{"type": "PodReadyToStartContainers", "status": ready}] if ready else []
    status = {
        "phase": "Pending",
        "conditions": conditions,
        "containerStatuses": [{"name": "tensorflow", "state": {"waiting": {"reason": waiting}}}],
        "initContainerStatuses": [{"name": "prepare", "state": state} for state in inits],
    }
    view = pod_view(raw(status), "tensorflow")
    assert view is not None
    assert view.pulling is pulling


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({}, "CrashLoopBackOff"),
        ({"waiting": ("ContainerCreating", "")}, ""),
        ({"waiting": None}, ""),
        ({"deleting": True}, ""),
        ({"phase": PodPhase.FAILED}, ""),
    ],
)
def test_only_live_pod_is_held_by_waiting_reason(fields: dict[str, Any], word: str) -> None:
    view = PodView(name="w", uid="u", replica=ReplicaId("worker", 0), attempt="", phase=PodPhase.RUNNING)
    assert replace(view, **{"waiting": ("CrashLoopBackOff", "back-off"), **fields}).held_by == word


@pytest.mark.parametrize(
    "reason",
    [
        *("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "ErrImageEntrypoint"),
        *("ErrImageNeverPull", "ImageInspectError", "ImagePullBackOff", "InvalidImageName", "ErrImagePull"),
    ],
)
def test_lasting_waiting_reasons_name_their_container(reason: str) -> None:
    waiting = [("istio", "PodInitializing"), ("tensorflow", "ContainerCreating"), ("proxy", reason)]
    statuses = [{"name": name, "state": {"waiting": {"reason": why, "message": "m"}}} for name, why in waiting]
    found = pod_view(raw({"phase": "Pending", "containerStatuses": statuses}), "tensorflow")
    assert found is not None
    assert found.waiting is not None
    assert found.held_by == {"ErrImagePull": "ImagePullBackOff"}.get(reason, reason)
    assert "proxy" in found.waiting[1]


def test_pod_with_huge_index_is_not_observed() -> None:
    view = pod_view(raw(labels={**LABELS, "tf-dist.dev/replica-index": "9" * 60}))
    assert view is not None
    plan = reconcile(v1_job(), Observed(now=1.0, pods=(view,)))
    assert plan.status.observed_replicas == frozenset()


def test_exit_is_that_of_training_container() -> None:
    statuses = [
        {"name": "sidecar", "state": {"terminated": {"exitCode": 0}}, "restartCount": 2},
        {"name": "tensorflow", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, "restartCount": 1},
    ]
    view = pod_view(raw({"phase": "Failed", "containerStatuses": statuses}), "tensorflow")
    assert view is not None
    assert view.exit is not None
    assert (view.exit.code, view.exit.out_of_memory, view.restarts) == (137, True, 3)


def test_first_container_counts_if_none_has_expected_name() -> None:
    statuses = [{"name": "main", "state": {"terminated": {"exitCode": 3}}}]
    view = pod_view(raw({"phase": "Failed", "containerStatuses": statuses}), "tensorflow")
    assert view is not None
    assert view.exit is not None
    assert view.exit.code == 3


def test_failed_pod_without_containers_exits_with_reason_of_pod() -> None:
    view = pod_view(raw({"phase": "Failed", "reason": "Evicted", "message": "out of disk"}))
    assert view is not None
    assert view.exit is not None
    assert (view.evicted, view.exit.code, view.exit.reason, view.exit.message) == (True, None, "Evicted", "out of disk")


@pytest.mark.parametrize(
    ("reason", "evicted"),
    [
        ("Evicted", True),
        ("Preempting", True),
        ("NodeShutdown", True),
        ("Terminated", True),
        ("NodeAffinity", True),
        ("NodePorts", True),
        ("OutOfcpu", True),
        ("DeadlineExceeded", False),
        ("Error", False),
    ],
)
def test_kubelet_reasons_that_are_evictions(reason: str, evicted: bool) -> None:
    view = pod_view(raw({"phase": "Failed", "reason": reason}))
    assert view is not None
    assert view.evicted is evicted


@pytest.mark.parametrize(
    ("reason", "failed"), [("StartError", True), ("ContainerCannotRun", True), ("Error", False), ("", False)]
)
def test_start_failure_is_derived_from_reason(reason: str, failed: bool) -> None:
    assert Exit(128, reason).start_failed is failed


@pytest.mark.parametrize(("stamp", "deleting"), [("2027-01-15T08:00:00Z", True), (None, False)])
def test_pod_with_deletion_timestamp_is_deleting(stamp: Any, deleting: bool) -> None:
    view = pod_view(raw(deletionTimestamp=stamp))
    assert view is not None
    assert view.deleting is deleting


@pytest.mark.parametrize(
    ("status", "evicted", "lost"),
    [
        ({"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "status": "True"}]}, True, False),
        ({"phase": "Failed", "reason": "Preempting"}, True, False),
        ({"phase": "Failed", "reason": "NodeShutdown"}, True, False),
        ({"phase": "Running", "reason": "NodeLost"}, False, True),
        ({"phase": "Unknown"}, False, True),
        ({"phase": "Failed"}, False, False),
    ],
)
def test_disruptions_are_distinguished_from_failures(status: Any, evicted: bool, lost: bool) -> None:
    view = pod_view(raw(status))
    assert view is not None
    assert (view.evicted, view.node_lost) == (evicted, lost)


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("EvictionByEvictionAPI", "was evicted from node n1 through the Eviction API"),
        ("PreemptionByScheduler", "was preempted from node n1 by the cluster's scheduler"),
        ("DeletionByTaintManager", "was evicted from node n1, whose taints it does not tolerate (any longer)"),
        (
            "DeletionByPodGC",
            "was removed from node n1 by the pod garbage collector: the node is gone, or out of service",
        ),
        ("TerminationByKubelet", "was ended from node n1 by the kubelet"),
        ("Rebalancing", "was disrupted from node n1"),
    ],
)
def test_disruption_message(reason: str, text: str) -> None:
    conditions = [{"type": "DisruptionTarget", "status": "True", "reason": reason}]
    found = pod_view({**raw({"phase": "Failed", "conditions": conditions}), "spec": {"nodeName": "n1"}})
    assert found is not None
    assert str(found.disruption) == text


SECRET = "cannot reach s3 with password=hunter2, or with token: abcdef"
WAITING = {"waiting": {"reason": "CreateContainerConfigError", "message": SECRET}}
ENDED = {"terminated": {"exitCode": 1, "reason": "Error", "message": SECRET}}


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Failed", "reason": "Evicted", "message": SECRET},
        {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": SECRET},
        {"phase": "Unknown", "reason": "NodeLost", "message": SECRET},
        {"phase": "Running", "conditions": [{"type": "DisruptionTarget", "status": "True", "message": SECRET}]},
        {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": SECRET}]},
        {"phase": "Pending", "containerStatuses": [{"name": "tensorflow", "state": WAITING}]},
        {"phase": "Pending", "initContainerStatuses": [{"name": "fetch", "state": WAITING}]},
        {"phase": "Failed", "containerStatuses": [{"name": "tensorflow", "state": ENDED}]},
        {"phase": "Failed", "containerStatuses": [{"name": "proxy", "state": ENDED}]},
        {"phase": "Failed", "initContainerStatuses": [{"name": "fetch", "state": ENDED}]},
        {"phase": "Running", "containerStatuses": [{"name": "tensorflow", "state": WAITING, "lastState": ENDED}]},
    ],
)
def test_no_message_of_a_pod_shows_a_credential(status: dict[str, Any]) -> None:
    view = pod_view(raw(status), "tensorflow")
    assert "s3 with password=***" in repr(view)
    assert "hunter2" not in repr(view)
    assert "abcdef" not in repr(view)


def test_long_message_of_a_pod_keeps_its_beginning_and_its_end() -> None:
    view = pod_view(raw({"phase": "Failed", "reason": "Evicted", "message": f"begin {'-=:@ ' * 100_000} end"}))
    assert view is not None
    assert view.disruption is not None
    said = view.disruption.message
    assert (said[:5], said[-3:], len(said) < 10_000) == ("begin", "end", True)


def test_replica_and_attempt_come_from_labels() -> None:
    view = pod_view(raw())
    assert view is not None
    assert (view.replica, view.attempt) == (ReplicaId("worker", 1), "1.0.0")


JSON_STATUS = st.fixed_dictionaries(
    {},
    optional={
        "phase": st.sampled_from((None, "Pending", "Running", "Succeeded", "Failed", "Unknown", "Odd")),
        "reason": st.sampled_from((None, "", "Evicted", "NodeLost")),
        "startTime": st.sampled_from((None, "", "yesterday", "2027-01-15T08:00:00Z", "2027-01-15T08:00:00")),
        "conditions": st.sampled_from((None, [], [{"type": "Ready", "status": "True"}], [{"type": "PodScheduled"}])),
        "containerStatuses": st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "name": st.sampled_from(("tensorflow", "other")),
                    "restartCount": st.sampled_from((None, 0, 7)),
                    "state": st.sampled_from((None, {}, {"running": {}}, {"waiting": {}}, {"terminated": {}})),
                    "lastState": st.sampled_from((None, {"terminated": {"exitCode": 1}}, {"terminated": {}})),
                },
            ),
            max_size=2,
        ),
    },
)


@given(st.lists(JSON_STATUS, min_size=3, max_size=3))
def test_reconcile_accepts_any_pod_status(statuses: list[Any]) -> None:
    pods = [
        {"metadata": {"name": name, "labels": {**LABELS, "tf-dist.dev/replica-type": type_}}, "status": status}
        for name, type_, status in zip("abc", ("worker", "ps", "missing"), statuses, strict=True)
    ]
    assert reconcile(v1_job(), observed(v1_job(), *pods)).actions


@pytest.mark.parametrize("count", [-1, -(2**31), 2**31 - 1, 2**63, 10**40])
def test_status_can_be_read_after_any_number_of_container_restarts(count: int) -> None:
    job = v1_job(replicas("Worker", 2, rules=()))
    pods = [pod(job, replica, running(restarts=count)) for replica in ("worker-0", "worker-1")]
    seen = observed(job, *pods)
    shown = reconcile(job, seen).status
    context = read_context(job, shown, seen)
    kept = keep_container_restarts(context, shown, context.facts.current)
    assert (kept.container_restarts > 0) == (count > 0)
    for status in (shown, kept):
        assert load_status({"tfDist": dump_status(status)}) == status

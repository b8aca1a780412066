"""The accepted spec in a job's status, and the status of a job with an invalid spec."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.core.builders import START, written
from tests.core.dialects.documents import changed, v1, v1alpha1, volcano
from tf_dist.core.model.context import Delete, DeleteJob
from tf_dist.core.model.job import ReplicaId
from tf_dist.core.model.pods import PodPhase, PodView
from tf_dist.core.model.status import Phase, RefusedSpec, Status
from tf_dist.core.model.timestamps import format_micro_time, format_time
from tf_dist.core.reconciler.accepted_spec import all_problems, plan_for_invalid_spec, read_stored_spec, unknown_keys
from tf_dist.errors import InvalidJob


def test_names_unknown_keys_only() -> None:
    document = changed(changed(v1(), "spec.runPolicy.cleanPodPolicyy", "All"), "spec.tfReplicaSpecs.Worker.extra", 1)
    stored = changed(document, "spec.tfReplicaSpecs.Chief.template.spec.restartPolicy", "Always")
    first, second = unknown_keys(stored).split("; ")
    assert first.startswith("spec.runPolicy.cleanPodPolicyy: unknown key (did you mean cleanPodPolicy?)")
    assert second.startswith("spec.tfReplicaSpecs.Worker.extra: unknown key")


def numbered(count: int, **item: Any) -> list[dict[str, Any]]:
    return [{"name": f"a{number}", **item} for number in range(count)]


SPEC, POD = "spec", "spec.tfReplicaSpecs.Chief.template.spec"
CONTAINER = f"{POD}.containers"
TRAINER = {"name": "tensorflow", "image": "any"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (SPEC, {**v1()["spec"], **{f"cleanPodPolicy{number}": 1 for number in range(2_000)}}),
        (
            SPEC,
            {f"cleanPodPolicy{number}": 1 for number in range(200)}
            | {"tfReplicaSpecs": {f"W{number}": {"replicas": "x"} for number in range(2_000)}},
        ),
        (POD, {"containers": [TRAINER], **{f"volume{number}": 1 for number in range(2_000)}}),
        (CONTAINER, [{**TRAINER, "env": numbered(2_000, valu="x")}]),
        (CONTAINER, [{**TRAINER, "env": numbered(2_000, value=1)}]),
        (CONTAINER, [{**TRAINER, "env": numbered(2_000, value="x", valueFrom={})}]),
        (CONTAINER, [TRAINER, *numbered(2_000, image="any", args=["$(A) $(B)"])]),
        (f"{POD}.volumes", numbered(2_000, emptyDir={}, hostPath={"path": "/x"})),
        (f"{POD}.tolerations", numbered(2_000, operator="exists")),
    ],
)
def test_validation_stops_after_first_hundred_problems(path: str, value: Any) -> None:
    """Other tenants wait while a controller checks a document."""
    document = changed(v1(), path, value)
    first = InvalidJob([])
    found = all_problems(document, first)
    assert len(found.problems) <= 100
    assert (found is first) is bool(unknown_keys(document))
    assert len(unknown_keys(document).split("; ")) <= 100


REFUSED = RefusedSpec(generation=1, digest="d", message="no chief")
PODS = tuple(
    PodView(
        name=name, uid=name, replica=ReplicaId("worker", 0), attempt="1.0.0", phase=phase, deleting=name == "leaves"
    )
    for name, phase in {
        "runs": PodPhase.RUNNING,
        "done": PodPhase.SUCCEEDED,
        "leaves": PodPhase.RUNNING,
    }.items()
)
SAID = "the spec is not accepted: no chief; the job starts when this is corrected"
STATE = {"phase": "Pending", "lastTransitionTime": format_time(START), "reason": "InvalidSpec", "message": SAID}


@pytest.mark.parametrize(
    ("document", "shown"),
    [
        (v1(), {"replicaStatuses": {}, "conditions": [("SpecAccepted", "False", SAID)]}),
        (
            v1alpha1(),
            {
                "phase": "Creating",
                "state": "Running",
                "replicaStatuses": [],
                "reason": SAID,
                "conditions": [("SpecAccepted", "False", SAID)],
            },
        ),
        (volcano(), {"state": STATE}),
    ],
)
def test_status_reports_invalid_spec_in_every_dialect(document: Any, shown: Any) -> None:
    refused = RefusedSpec(generation=1, digest="d", message="no chief")
    status = written(plan_for_invalid_spec(document, Status(), refused, START))
    assert status.pop("tfDist")["since"] == format_micro_time(START)
    if "conditions" in status:
        status["conditions"] = [(one["type"], one["status"], one["message"]) for one in status["conditions"]]
    assert status == shown


@pytest.mark.parametrize(
    ("part", "key", "counts"),
    [
        ("annotations", "tf-dist.dev/queue", True),
        ("annotations", "tf-dist.dev/expected-duration", True),
        ("annotations", "volcano.sh/preemptable", True),
        ("annotations", "scheduling.volcano.sh/queue-name", True),
        ("labels", "kueue.x-k8s.io/queue-name", True),
        ("annotations", "kubectl.kubernetes.io/last-applied-configuration", False),
        ("annotations", "example.com/team", False),
        ("labels", "app", False),
    ],
)
def test_digest_includes_annotations_and_labels_that_are_settings(part: str, key: str, counts: bool) -> None:
    def digest(values: dict[str, str]) -> str:
        accepted = read_stored_spec(changed(v1(), f"metadata.{part}", values), Status()).accepted
        assert accepted is not None
        return accepted.digest

    assert (digest({key: "1h"}) != digest({})) is counts


def test_invalid_spec_keeps_existing_conditions() -> None:
    refused = RefusedSpec(generation=1, digest="d", message="no chief")
    running = {"type": "Running", "status": "False", "lastTransitionTime": format_time(START)}
    known = {"type": "SpecAccepted", "status": "False", "reason": "InvalidSpec", "message": SAID}
    long_ago = {**known, "lastTransitionTime": format_time(START - 900)}
    document = {**v1(), "status": {"conditions": [running, long_ago]}}
    conditions = written(plan_for_invalid_spec(document, Status(), refused, START))["conditions"]
    assert [one["type"] for one in conditions] == ["SpecAccepted", "Running"]
    assert conditions[0]["lastTransitionTime"] == long_ago["lastTransitionTime"]
    assert conditions[1] == running


@pytest.mark.parametrize(
    ("document", "path", "clean", "deleted"),
    [
        (v1(), "spec.runPolicy.cleanPodPolicy", "Running", ["runs"]),
        (v1(), "spec.runPolicy.cleanPodPolicy", "All", ["runs", "done"]),
        (v1(), "spec.runPolicy.cleanPodPolicy", "None", []),
        (v1(), "spec.runPolicy.cleanPodPolicy", 5, ["runs"]),
        (v1(), "spec.runPolicy", {}, []),
        (v1alpha1(), "spec.cleanupPodPolicy", "All", ["runs", "done"]),
        (volcano(), "spec.plugins", 5, ["runs"]),
    ],
)
def test_job_with_invalid_spec_that_has_ended_frees_its_nodes(
    document: Any, path: str, clean: Any, deleted: list[str]
) -> None:
    """Its leader died right after the end, and its spec is edited. The next leader has never known a valid spec."""
    ended = Status(phase=Phase.COMPLETED, reason="JobSucceeded", completion_time=START)
    plan = plan_for_invalid_spec(changed(document, path, clean), ended, REFUSED, START + 9, PODS)
    assert [action.name for action in plan.actions if isinstance(action, Delete)] == deleted
    failed = Status(phase=Phase.FAILED, reason="DeadlineExceeded", completion_time=START)
    plan = plan_for_invalid_spec(changed(document, path, clean), failed, REFUSED, START + 9, PODS)
    assert [action.name for action in plan.actions if isinstance(action, Delete)] == (deleted or ["runs"])


@pytest.mark.parametrize(
    ("ttl", "expires"), [(20, START + 20), (0, None), (None, math.inf), ("20", math.inf), (-1, math.inf)]
)
def test_job_with_invalid_spec_is_deleted_after_its_time_to_live(ttl: Any, expires: float | None) -> None:
    ended = Status(phase=Phase.COMPLETED, reason="JobSucceeded", completion_time=START)
    document = changed(v1(), "spec.runPolicy.ttlSecondsAfterFinished", ttl)
    plan = plan_for_invalid_spec(document, ended, REFUSED, START + 9)
    assert plan.actions == (() if expires else (DeleteJob(),))
    assert plan.wake_at == (None if expires in (None, math.inf) else expires)

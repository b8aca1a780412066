"""Allowed changes of a stored Volcano Job: ``validateJobUpdate`` of its webhook, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.dialects.documents import changed, template, v1, volcano
from tf_dist.core.dialects import update_problems
from tf_dist.core.model.status import Status
from tf_dist.core.reconciler.accepted_spec import read_stored_spec

TASK = {"name": "more", "replicas": 1, "template": template(restartPolicy="Never")}

ALLOWED = [
    ("spec.minAvailable", 2),
    ("spec.priorityClassName", "high"),
    ("spec.tasks.1.replicas", 5),
    ("spec.tasks.1.minAvailable", 1),
    ("spec.maxRetry", 3),  # the default
    ("metadata.labels", {"a": "b"}),
]
REFUSED = [
    ("spec.queue", "other", "spec.queue"),
    ("spec.schedulerName", "other", "spec.schedulerName"),
    ("spec.maxRetry", 5, "spec.maxRetry"),
    ("spec.minSuccess", 1, "spec.minSuccess"),
    ("spec.ttlSecondsAfterFinished", 5, "spec.ttlSecondsAfterFinished"),
    ("spec.policies", [], "spec.policies"),
    ("spec.plugins", {"env": []}, "spec.plugins"),
    ("spec.volumes", [{"mountPath": "/a", "volumeClaimName": "b"}], "spec.volumes"),
    ("spec.tasks.1.name", "trainer", "spec.tasks[1].name"),
    ("spec.tasks.1.policies", [], "spec.tasks[1].policies"),
    ("spec.tasks.1.maxRetry", 9, "spec.tasks[1].maxRetry"),
    ("spec.tasks.0.template.spec.containers.0.image", "other", "spec.tasks[0].template"),
    ("spec.tasks", [*volcano()["spec"]["tasks"], TASK], "spec.tasks"),
    ("spec.tasks", volcano()["spec"]["tasks"][:1], "spec.tasks"),
]


@pytest.mark.parametrize(("path", "value"), ALLOWED)
def test_accepts_allowed_updates(path: str, value: Any) -> None:
    assert update_problems(volcano(), changed(volcano(), path, value)) == ()


@pytest.mark.parametrize(("path", "value", "told"), REFUSED)
def test_refuses_updates_of_immutable_fields(path: str, value: Any, told: str) -> None:
    assert [problem.path for problem in update_problems(volcano(), changed(volcano(), path, value))] == [told]


def test_reports_all_immutable_fields_at_once() -> None:
    edited = changed(changed(volcano(), "spec.queue", "other"), "spec.tasks.0.policies", [{"event": "*"}])
    assert [problem.path for problem in update_problems(volcano(), edited)] == ["spec.queue", "spec.tasks[0].policies"]


def test_other_dialects_allow_updates() -> None:
    assert update_problems(v1(), changed(v1(), "spec.runPolicy.backoffLimit", 9)) == ()


# The last document is refused for another reason: one task does not reach the minimum of 3.
NOT_IN_FORCE = [*REFUSED[:-1], (*REFUSED[-1][:2], "spec.minAvailable")]


@pytest.mark.parametrize(("path", "value", "told"), NOT_IN_FORCE)
def test_accepted_spec_stays_in_force_after_refused_update(path: str, value: Any, told: str) -> None:
    stored = changed(volcano(), "metadata.uid", "uid-1")
    first = read_stored_spec(stored, Status())
    found = read_stored_spec(changed(stored, path, value), Status(accepted_spec=first.accepted), (stored, first))
    assert found.job == first.job
    assert found.refused is not None
    assert found.refused.message.startswith(f"{told}: ")

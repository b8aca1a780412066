"""Events of one reconcile: similar events are combined, with the wording of the original operator."""

from __future__ import annotations

import pytest

from tf_dist.core.model.context import Create, Delete, EmitEvent
from tf_dist.core.reconciler.job_events import combined_events, object_event


def created(name: str) -> EmitEvent:
    return EmitEvent("Normal", "SuccessfulCreatePod", f"Created pod: {name}", routine=True)


def test_created_pods_are_combined_into_one_event() -> None:
    service = EmitEvent("Normal", "SuccessfulCreateService", "Created service: mnist", routine=True)
    events = [service, created("mnist-ps-0"), created("mnist-worker-0"), created("mnist-worker-1")]
    found = combined_events(events)
    message = "Created pod: mnist-ps-0, mnist-worker-0, mnist-worker-1"
    assert found == [service, EmitEvent("Normal", "SuccessfulCreatePod", message, routine=True, count=3)]


def test_equal_messages_appear_once_and_others_are_joined() -> None:
    refused = EmitEvent("Warning", "FailedCreatePod", "quota exceeded", routine=True)
    other = EmitEvent("Warning", "FailedCreatePod", "Error creating: no answer", routine=True)
    (found,) = combined_events([refused, refused, other])
    assert (found.message, found.count) == ("quota exceeded; Error creating: no answer", 3)


def test_events_that_are_not_routine_are_not_combined() -> None:
    one, two = EmitEvent("Normal", "Resumed", "a"), EmitEvent("Normal", "Resumed", "b")
    assert combined_events([one, two]) == [one, two]


@pytest.mark.parametrize("kind", ["Pod", "Service"])
def test_refused_write_emits_event_with_operator_wording(kind: str) -> None:
    create, delete = Create({"kind": kind, "metadata": {"name": "m"}}), Delete(kind, "m", "uid")
    refused = [object_event("kubeflow.org/v1", action, OSError("no quota")) for action in (create, delete)]
    assert [(one.type, one.reason, one.message) for one in refused if one is not None] == [
        ("Warning", {"Pod": "FailedCreatePod", "Service": "FailedCreateService"}[kind], "Error creating: no quota"),
        ("Warning", {"Pod": "FailedDeletePod", "Service": "FailedDeleteService"}[kind], "Error deleting: no quota"),
    ]

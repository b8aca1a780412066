"""Events of one pass: many of a kind are one, in the operator's words."""

from __future__ import annotations

import pytest

from tf_dist.core.model.context import Create, Delete, EmitEvent
from tf_dist.core.reconciler.job_events import combined_events, object_event


def created(name: str) -> EmitEvent:
    return EmitEvent("Normal", "SuccessfulCreatePod", f"Created pod: {name}", routine=True)


def test_pods_that_were_created_are_one_event_that_names_and_counts_them() -> None:
    service = EmitEvent("Normal", "SuccessfulCreateService", "Created service: mnist", routine=True)
    events = [service, created("mnist-ps-0"), created("mnist-worker-0"), created("mnist-worker-1")]
    found = combined_events(events)
    message = "Created pod: mnist-ps-0, mnist-worker-0, mnist-worker-1"
    assert found == [service, EmitEvent("Normal", "SuccessfulCreatePod", message, routine=True, count=3)]


def test_the_same_words_are_said_once_and_others_one_after_the_other() -> None:
    refused = EmitEvent("Warning", "FailedCreatePod", "quota exceeded", routine=True)
    other = EmitEvent("Warning", "FailedCreatePod", "Error creating: no answer", routine=True)
    (found,) = combined_events([refused, refused, other])
    assert (found.message, found.count) == ("quota exceeded; Error creating: no answer", 3)


def test_events_that_are_not_routine_are_not_combined() -> None:
    one, two = EmitEvent("Normal", "Resumed", "a"), EmitEvent("Normal", "Resumed", "b")
    assert combined_events([one, two]) == [one, two]


@pytest.mark.parametrize("kind", ["Pod", "Service"])
def test_a_refused_object_is_an_event_in_the_operators_words(kind: str) -> None:
    create, delete = Create({"kind": kind, "metadata": {"name": "m"}}), Delete(kind, "m", "uid")
    refused = [object_event("kubeflow.org/v1", action, OSError("no quota")) for action in (create, delete)]
    assert [(one.type, one.reason, one.message) for one in refused if one is not None] == [
        ("Warning", {"Pod": "FailedCreatePod", "Service": "FailedCreateService"}[kind], "Error creating: no quota"),
        ("Warning", {"Pod": "FailedDeletePod", "Service": "FailedDeleteService"}[kind], "Error deleting: no quota"),
    ]

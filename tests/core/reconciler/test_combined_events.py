"""Events of one pass: many of a kind are one, in the operator's words."""

from __future__ import annotations

from tf_dist.core.model.context import EmitEvent
from tf_dist.core.reconciler.tfjob_messages import combined_events


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


def test_what_is_not_routine_stays_as_it_is() -> None:
    one, two = EmitEvent("Normal", "Resumed", "a"), EmitEvent("Normal", "Resumed", "b")
    assert combined_events([one, two]) == [one, two]

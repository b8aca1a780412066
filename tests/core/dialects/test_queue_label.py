"""The queue of a job by a label, in every format."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.dialects.documents import v1, v1alpha1, volcano
from tf_dist.core.dialects import convert, parse, read
from tf_dist.core.model import Dialect
from tf_dist.errors import InvalidJob

LABEL = {"tf-dist.dev/queue": "vision"}


def unqueued(document: Any = None) -> Any:
    found = document or v1()
    for place in (found["spec"], found["spec"].get("runPolicy", {}).get("schedulingPolicy", {})):
        place.pop("queue", None)
    return found


def labelled(document: Any) -> Any:
    return {**document, "metadata": {**document["metadata"], "labels": LABEL}}


@pytest.mark.parametrize("make", [unqueued, v1alpha1, lambda: unqueued(volcano())])
def test_a_label_names_the_queue(make: Any) -> None:
    document = labelled(make())
    assert parse(document).job.scheduling.queue == "vision"
    assert read(document).scheduling.queue == "vision"


def test_label_and_field_must_agree() -> None:
    document = labelled(v1())
    policy = document["spec"]["runPolicy"]["schedulingPolicy"]
    policy["queue"] = "vision"
    assert parse(document).job.scheduling.queue == "vision"
    policy["queue"] = "speech"
    with pytest.raises(InvalidJob) as refused:
        parse(document)
    [problem] = refused.value.problems
    assert problem.path == 'metadata.labels["tf-dist.dev/queue"]'
    assert "spec.runPolicy.schedulingPolicy.queue names speech" in problem.message


def test_v1alpha1_keeps_the_queue_of_a_v1_job_in_a_label() -> None:
    document = v1()
    document["spec"]["runPolicy"]["schedulingPolicy"]["queue"] = "vision"
    converted = convert(document, Dialect.TFJOB_V1ALPHA1)
    assert converted.document["metadata"]["labels"] == {"app": "mnist", **LABEL}
    assert not [problem for problem in converted.lost if "queue" in problem.message]

"""What a pipeline says of a job that somebody else wrote."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.core.dialects.documents import v1, v1alpha1, volcano
from tf_dist.core import names
from tf_dist.core.dialects import Tailoring, parse, read, tailored
from tf_dist.core.model import Role
from tf_dist.errors import InvalidJob

FORMS = pytest.mark.parametrize("make", [v1, v1alpha1, volcano], ids=lambda make: make.__name__)
ALL = Tailoring(workers=5, ps=2, image="mine:2", env={"A": "1", "B": "2"}, labels={"team": "vision"}, tidy=True)


@FORMS
def test_nothing_said_changes_nothing(make: Any) -> None:
    assert tailored(make(), Tailoring()) == make()


@FORMS
def test_all_that_is_said_is_in_the_job(make: Any) -> None:
    document = make()
    before = copy.deepcopy(document)
    after = tailored(document, ALL)
    assert document == before
    job = parse(after).job
    assert {spec.role: spec.replicas for spec in job.replica_specs if spec.role in (Role.WORKER, Role.PS)} == {
        Role.WORKER: 5,
        Role.PS: 2,
    }
    for spec in job.replica_specs:
        if not spec.template:
            continue
        assert spec.template["metadata"]["labels"]["team"] == "vision"
        for container in spec.template["spec"]["containers"]:
            assert [one["name"] for one in container["env"]][:2] == ["A", "B"]
            if container["name"] == spec.container:
                assert container["image"] == "mine:2"


@pytest.mark.parametrize("make", [v1, volcano], ids=lambda make: make.__name__)
def test_queue_and_priority(make: Any) -> None:
    job = read(tailored(make(), Tailoring(queue="vision", priority_class="high")))
    assert (job.scheduling.queue, job.scheduling.priority_class) == ("vision", "high")


def test_a_format_without_a_word_for_it_says_so() -> None:
    with pytest.raises(InvalidJob) as caught:
        tailored(v1alpha1(), Tailoring(priority_class="high"))
    assert len(caught.value.problems) == 1
    assert "tf-dist convert" in caught.value.problems[0].hint


@pytest.mark.parametrize("make", [v1, v1alpha1, volcano], ids=lambda make: make.__name__)
def test_a_queue_stands_above_every_word_of_the_document_for_one(make: Any) -> None:
    assert read(tailored(make(), Tailoring(queue="vision"))).scheduling.queue == "vision"
    labelled = make()
    labelled["metadata"]["labels"] = {names.QUEUE: read(labelled).scheduling.queue or "speech"}
    assert read(tailored(labelled, Tailoring(queue="vision"))).scheduling.queue == "vision"


def test_replicas_that_the_job_does_not_have() -> None:
    document = v1()
    del document["spec"]["tfReplicaSpecs"]["PS"]
    with pytest.raises(InvalidJob, match="2 ps replicas are asked for, and the job has none"):
        tailored(document, Tailoring(ps=2))


def test_a_variable_of_the_containers_own_stays() -> None:
    document = v1()
    container = document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "A", "value": "own"}]
    after = tailored(document, Tailoring(env={"A": "ours", "B": "2"}))
    found = after["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["env"]
    assert found == [{"name": "B", "value": "2"}, {"name": "A", "value": "own"}]


@pytest.mark.parametrize(("said", "expected"), [(None, "Running"), ("None", "None"), ("All", "All")])
def test_what_goes_at_the_end_is_said_where_nobody_did(said: str | None, expected: str) -> None:
    document = v1()
    document["spec"]["runPolicy"] = {} if said is None else {"cleanPodPolicy": said}
    assert tailored(document, Tailoring(tidy=True))["spec"]["runPolicy"]["cleanPodPolicy"] == expected

"""How a controller reads stored jobs with its settings."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.controller.harness import World, container, tfjob
from tf_dist.cluster.api import TFJOBS, Object
from tf_dist.controller.job_index import JobIndex
from tf_dist.controller.settings import ControllerSettings, JobRef
from tf_dist.core.model import names

FIRST_FORMAT = {
    **tfjob(),
    "spec": {"replicaSpecs": [{"tfReplicaType": "MASTER", "template": {"spec": {"containers": [container()]}}}]},
}


@pytest.mark.parametrize(
    ("document", "asked", "expected"),
    [(FIRST_FORMAT, True, True), (FIRST_FORMAT, False, False), (tfjob(), True, False)],
    ids=["of the first format", "not asked for", "of v1"],
)
def test_only_v1alpha1_gangs_have_disruption_budget_when_enabled(document: Object, asked: bool, expected: bool) -> None:
    index = JobIndex(ControllerSettings(disruption_budgets=asked))
    known = index.read(JobRef(TFJOBS, "default", "mnist"), World().submit(document))
    assert known.job is not None
    assert known.job.disruption_budget is expected


@pytest.mark.parametrize("domain", ["", "example.local"])
def test_job_has_cluster_domain_of_settings(domain: str) -> None:
    index = JobIndex(ControllerSettings(cluster_domain=domain))
    known = index.read(JobRef(TFJOBS, "default", "mnist"), World().submit(tfjob()))
    assert known.job is not None
    assert known.job.cluster_domain == domain


def invalid(document: Object) -> None:
    document["metadata"]["annotations"] = {names.FALLBACK: "[{"}


def suspended(document: Object) -> None:
    document["spec"]["runPolicy"]["suspend"] = True


def deleting(document: Object) -> None:
    document["metadata"]["finalizers"] = ["example.com/other"]


@pytest.mark.parametrize("change", [invalid, suspended, deleting])
def test_job_that_cannot_be_admitted_has_no_admission_inputs(change: Callable[[Object], None]) -> None:
    """A tenant can create thousands of such jobs and edit them continuously."""
    index, world, document = JobIndex(), World(), tfjob()
    change(document)
    stored = world.submit(document)
    if change is deleting:
        world.memory.delete(TFJOBS, "default", "mnist")
        stored = world.job()
    known = index.read(JobRef(TFJOBS, "default", "mnist"), stored)
    assert known.claim() is None
    assert known.admission_inputs == ()


@pytest.mark.parametrize(
    ("edit", "same"),
    [
        ({"metadata": {"labels": {"edit": "1"}}}, True),
        ({"metadata": {"annotations": {"example.com/edit": "1"}}}, True),
        ({"metadata": {"labels": {names.QUEUE: "research"}}}, False),
        ({"metadata": {"annotations": {names.TOPOLOGY: "rack"}}}, False),
        ({"spec": {"tfReplicaSpecs": {"Worker": {"replicas": 1}}}}, False),
    ],
)
def test_only_relevant_edits_change_admission_inputs(edit: Object, same: bool) -> None:
    """A client can edit the labels of a waiting job continuously."""
    index, world, ref = JobIndex(), World(), JobRef(TFJOBS, "default", "mnist")
    document = tfjob()
    document["metadata"]["annotations"] = {names.FALLBACK: '[{"workers": 1}]'}
    before = index.read(ref, world.submit(document))
    assert before.job is not None
    assert before.job.fallbacks
    after = index.read(ref, world.memory.patch(TFJOBS, "default", "mnist", edit))
    assert after.job is not None
    assert after.job is not before.job
    assert (after.admission_inputs == before.admission_inputs) is same

"""Who is to decide about a gang: one annotation, the same in every format."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.core.dialects.documents import ALL, Doc, only_error
from tf_dist.core import render
from tf_dist.core.dialects import parse, read
from tf_dist.core.dialects.convert import convert
from tf_dist.core.gang_scheduler import GangScheduler
from tf_dist.core.model import Dialect, ReplicaId
from tf_dist.core.names import GANG_SCHEDULER
from tf_dist.errors import InvalidJob

EVERY = pytest.mark.parametrize("document", ALL)


def asking(document: Callable[[], Doc], gang: str) -> Doc:
    job = document()
    return {**job, "metadata": {**job["metadata"], "annotations": {GANG_SCHEDULER: gang}}}


@EVERY
@pytest.mark.parametrize("gang", GangScheduler)
def test_a_job_may_name_any_of_them(document: Callable[[], Doc], gang: GangScheduler) -> None:
    assert parse(asking(document, gang.value)).job.scheduling.gang is gang
    assert read(asking(document, gang.value)).scheduling.gang is gang


@EVERY
def test_a_name_that_nobody_has_is_refused_with_the_nearest(document: Callable[[], Doc]) -> None:
    problem = only_error(asking(document, "Volcan0"))
    assert problem.path == f'metadata.annotations["{GANG_SCHEDULER}"]'
    assert problem.hint == "did you mean volcano?"
    with pytest.raises(InvalidJob):
        read(asking(document, "Volcan0"))


@EVERY
def test_a_job_that_names_nobody_leaves_it_to_its_driver(document: Callable[[], Doc]) -> None:
    """Not even a Volcano Job asks for Volcano: its schedulerName says who binds its pods, and every example has it."""
    job = document()
    job["spec"] |= {"schedulerName": "volcano"} if job["kind"] == "Job" else {}
    assert parse(job).job.scheduling.gang is None


@EVERY
def test_it_is_for_tf_dist_and_not_for_pods(document: Callable[[], Doc]) -> None:
    job = parse(asking(document, "kueue")).job
    pod = render.pod(job, ReplicaId(job.replica_specs[0].type, 0), "1.0.0")
    assert GANG_SCHEDULER not in (pod["metadata"].get("annotations") or {})


@pytest.mark.parametrize("to", Dialect)
def test_another_format_says_it_too(to: Dialect) -> None:
    document = ALL[0] if to is not Dialect.TFJOB_V1 else ALL[2]
    assert convert(asking(document, "kueue"), to).document["metadata"]["annotations"] == {GANG_SCHEDULER: "kueue"}

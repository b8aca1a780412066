"""Clean-up of a job at the end of a try."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.airflow.instance import Instance
from tests.airflow.light import LightSite
from tests.airflow.site import document

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

from tf_dist.airflow import TFJobOperator
from tf_dist.airflow.hooks.tfjob import TFJobHook
from tf_dist.airflow.jobs.task_identity import RESULT_USED
from tf_dist.airflow.operators.job_cleanup import JobCleanup
from tf_dist.core.pipeline.session import EndCause

MINE = "me/1"


@pytest.fixture
def hook(light: LightSite) -> Iterator[TFJobHook]:
    found = TFJobHook(None, config_file=light.kubeconfig)
    yield found
    found.close()


def cleanup(hook: TFJobHook, ti: Instance, **arguments: Any) -> JobCleanup:
    return JobCleanup(TFJobOperator(task_id="train", job=document(), **arguments), ti, hook, MINE)


@pytest.mark.parametrize(
    ("action", "cause", "deleted"),
    [
        ("delete_job", EndCause.SUCCEEDED, True),
        ("delete_job", EndCause.FAILED, True),
        ("keep_job", EndCause.SUCCEEDED, False),
        ("keep_job", EndCause.FAILED, False),
        ("keep_job", EndCause.OVERDUE, True),
        ("delete_succeeded_job", EndCause.SUCCEEDED, True),
        ("delete_succeeded_job", EndCause.FAILED, False),
        ("delete_active_job", EndCause.SUCCEEDED, False),
        ("delete_active_job", EndCause.OVERDUE, True),
    ],
)
def test_after_the_wait(light: LightSite, hook: TFJobHook, action: str, cause: EndCause, deleted: bool) -> None:
    light.submit("a", MINE)
    job = hook.get_job("a", "default")
    assert cleanup(hook, Instance("r"), on_finish_action=action).part(job, cause) is deleted
    assert len(light.uids()) == (not deleted)
    if not deleted:
        assert RESULT_USED in light.job("a")["metadata"]["annotations"]


@pytest.mark.parametrize("cause", [EndCause.ERROR, EndCause.UNREACHABLE, EndCause.NOT_ADMITTED])
@pytest.mark.parametrize(
    ("durable", "number", "owner", "stays"),
    [(True, 1, MINE, True), (True, 2, MINE, False), (False, 1, MINE, False), (False, 1, "another/1", True)],
)
def test_a_wait_that_ended_before_the_job_did(
    light: LightSite, hook: TFJobHook, durable: bool, number: int, owner: str, stays: bool, cause: EndCause
) -> None:
    light.submit("a", owner)
    cleanup(hook, Instance("r", try_number=number), durable=durable).part(hook.get_job("a", "default"), cause)
    assert len(light.uids()) == stays

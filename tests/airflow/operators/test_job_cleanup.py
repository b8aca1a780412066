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
from tf_dist.airflow.operators.job_cleanup import JobCleanup

MINE = "me/1"


@pytest.fixture
def hook(light: LightSite) -> Iterator[TFJobHook]:
    found = TFJobHook(None, config_file=light.kubeconfig)
    yield found
    found.close()


def cleanup(hook: TFJobHook, ti: Instance, **arguments: Any) -> JobCleanup:
    return JobCleanup(TFJobOperator(task_id="train", job=document(), **arguments), ti, hook, MINE)


@pytest.mark.parametrize(
    ("action", "reached", "decided", "over", "deleted"),
    [
        ("delete_job", True, True, False, True),
        ("delete_job", False, True, False, True),
        ("keep_job", True, True, False, False),
        ("keep_job", False, True, False, False),
        ("keep_job", False, False, False, True),
        ("keep_job", False, False, True, False),
        ("delete_succeeded_job", True, True, False, True),
        ("delete_succeeded_job", False, True, False, False),
        ("delete_succeeded_job", False, False, True, False),
        ("delete_active_job", True, True, False, False),
        ("delete_active_job", False, False, False, True),
    ],
)
def test_after_the_wait(
    light: LightSite, hook: TFJobHook, action: str, reached: bool, decided: bool, over: bool, deleted: bool
) -> None:
    light.submit("a", MINE)
    one = cleanup(hook, Instance("r"), on_finish_action=action)
    event = {"reached": reached, "decided": decided, "over": over}
    assert one.clean_up(hook.get_job("a", "default"), event) is deleted
    assert len(light.uids()) == (not deleted)


@pytest.mark.parametrize(
    ("durable", "number", "owner", "stays"),
    [(True, 1, MINE, True), (True, 2, MINE, False), (False, 1, MINE, False), (False, 1, "another/1", True)],
)
def test_a_wait_that_ended_before_the_job_did(
    light: LightSite, hook: TFJobHook, durable: bool, number: int, owner: str, stays: bool
) -> None:
    light.submit("a", owner)
    cleanup(hook, Instance("r", try_number=number), durable=durable).abandon(hook.get_job("a", "default"))
    assert len(light.uids()) == stays

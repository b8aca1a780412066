"""The trigger yields exactly one event, also after failures, and cleans up however it ends."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any, Self

import pytest

from tests.airflow.site import FOREVER, SECONDS, Site, document
from tests.waiting import until
from tf_dist.airflow.hooks.kubernetes_connection import ClusterArguments
from tf_dist.airflow.informers.informer_registry import SHARED_INFORMERS
from tf_dist.airflow.jobs.task_identity import OWNER_ANNOTATION

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")


import structlog

from tf_dist.airflow import TFJobTrigger
from tf_dist.airflow.triggers.tfjob import WaitRequest

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def submit(site: Site, name: str, script: str = FOREVER, **annotations: str) -> str:
    """Create a job like the operator, and return its uid."""
    body = document(script, name=name)
    body["metadata"]["annotations"] = {OWNER_ANNOTATION: "me/1", **annotations}
    return str(site.submit(body)["metadata"]["uid"])


def trigger(site: Site, name: str, **fields: Any) -> TFJobTrigger:
    access = ClusterArguments(kubernetes_conn_id=None, config_file=site.kubeconfig).fields()
    request = WaitRequest(name=name, namespace="default", access=access, drive=True, poll_interval=0.1, **fields)
    return TFJobTrigger(**request.plain())


async def event(one: TFJobTrigger) -> dict[str, Any]:
    (found,) = [event async for event in one.run()]
    return dict(found.payload)


def test_event_is_plain_json(cluster_site: Site) -> None:
    uid = submit(cluster_site, "a", "echo loss=nan accuracy=0.5")
    found = asyncio.run(event(trigger(cluster_site, "a", uid=uid)))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["result"]["metrics"] == {"loss": "nan", "accuracy": 0.5}


class SlowLog:
    """Airflow's logger in a triggerer whose supervisor does not read: each line waits until ``read`` is set."""

    def __init__(self) -> None:
        self.waits, self.read, self.lines = threading.Event(), threading.Event(), list[str]()

    def __call__(self, logger: Any, method: str, fields: Any) -> Any:
        if fields["event"].startswith("worker-0 | "):
            self.waits.set()
            assert self.read.wait(SECONDS), "the event loop was held up"
        self.lines.append(fields["event"])
        raise structlog.DropEvent

    def __enter__(self) -> Self:
        self._processors = structlog.get_config()["processors"]
        self._before = [*self._processors]
        self._processors[:] = [self]
        return self

    def __exit__(self, *exc: object) -> None:
        self._processors[:] = self._before


def test_many_log_lines_block_neither_loop_nor_result(cluster_site: Site) -> None:
    uid = submit(cluster_site, "a", "yes loss=0.5 | head -n 20000; echo step=7; echo the last line")

    async def waits(log: SlowLog) -> dict[str, Any]:
        found = asyncio.create_task(event(trigger(cluster_site, "a", uid=uid)))
        await asyncio.to_thread(log.waits.wait, SECONDS)
        await asyncio.sleep(0)  # the loop runs while the log is blocked
        log.read.set()
        return await found

    with SlowLog() as log:
        found = asyncio.run(waits(log))
    assert found["result"]["metrics"] == {"loss": 0.5, "step": 7}
    assert "worker-0 | the last line" in log.lines[-5:]


def test_serialized_arguments_are_json_and_unknown_arguments_are_ignored(cluster_site: Site) -> None:
    _, arguments = trigger(cluster_site, "a", uid="u", deadline=5.0).serialize()
    assert json.loads(json.dumps(arguments)) == arguments
    assert "admission_timeout" not in arguments  # has its default value, so an older triggerer need not support it
    assert TFJobTrigger(**arguments, of_tomorrow=1).serialize()[1] == arguments


@pytest.mark.parametrize(
    ("fields", "kind"),
    [({"uid": "other"}, "deleted"), ({"deadline": 0.0}, "unknown")],
    ids=["deleted", "never created"],
)
def test_missing_job_gives_event(cluster_site: Site, fields: dict[str, Any], kind: str) -> None:
    found = asyncio.run(event(trigger(cluster_site, "missing", **fields)))
    assert found["outcome"]["kind"] == kind
    assert "missing" in found["job"]


def test_missing_cluster_gives_event(cluster_site: Site) -> None:
    request = WaitRequest(name="a", namespace="default", access={"kubernetes_conn_id": None, "config_file": "/missing"})
    found = asyncio.run(event(TFJobTrigger(**request.plain())))
    assert (found["outcome"]["kind"], "there is no kubeconfig" in found["message"]) == ("unknown", True)


def test_many_triggers_share_one_informer(cluster_site: Site, tmp_path: Any) -> None:
    flag, count = tmp_path / "flag", 8
    for number in range(count):
        submit(cluster_site, f"j{number}", f"while [ ! -e '{flag}' ]; do sleep 0.1; done")

    async def all_of_them() -> list[dict[str, Any]]:
        waiting = [asyncio.ensure_future(event(trigger(cluster_site, f"j{number}"))) for number in range(count)]
        await asyncio.to_thread(until, lambda: len(cluster_site.pods()) == count, SECONDS)
        assert len(SHARED_INFORMERS) == 1
        assert "tf-dist-controller" in cluster_site.leases()
        flag.touch()
        return await asyncio.gather(*waiting)

    assert all(found["reached"] for found in asyncio.run(all_of_them()))


def test_restarted_trigger_does_not_repeat_all_lines(cluster_site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """The second trigger starts after all lines are written. The first is of a release without ``asked_at``."""
    uid = submit(cluster_site, "a", "i=0; while [ $i -lt 300 ]; do echo line=$i; i=$((i+1)); done")
    for asked, again in (({}, False), ({"asked_at": time.time() - 1000}, True)):
        found = asyncio.run(event(trigger(cluster_site, "a", uid=uid, **asked)))
        assert found["result"]["metrics"] == {"line": 299.0}
        shown = capsys.readouterr().out
        assert "line=299" in shown
        assert ("are repeated" in shown, "line=99 " not in shown) == (again, again)

"""A trigger never deletes jobs that it does not own, and leaves nothing behind when it is cancelled."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.airflow.light import LightSite
from tests.faults.proxy import Fault, Kind, Passed, Proxy
from tests.waiting import until
from tf_dist.airflow.hooks.kubernetes_connection import ClusterArguments
from tf_dist.airflow.informers.informer_registry import SHARED_INFORMERS
from tf_dist.airflow.jobs.task_identity import MARKED_FOR_DELETION, OWNER_ANNOTATION
from tf_dist.cluster.api import TFJOBS
from tf_dist.errors import ClusterError

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from tf_dist.airflow import TFJobTrigger
from tf_dist.airflow.hooks.tfjob import make_shared_informer
from tf_dist.airflow.triggers.tfjob import WaitRequest, _undone_if_cancelled

SECONDS = 60.0
MINE = "me/1"


class Asked:
    """Replaces the triggerer's access to the database, and returns the given states of the task in turn."""

    def __init__(self, *states: str | None) -> None:
        self.states = list(states)
        self.times = 0

    def __call__(self, **_: Any) -> dict[str, Any]:
        self.times += 1
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return {"r": {"t": state}}


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Asked:
    asked = Asked("failed")
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", asked)
    return asked


def trigger(light: LightSite, kubeconfig: str = "", **fields: Any) -> TFJobTrigger:
    access = ClusterArguments(kubernetes_conn_id=None, config_file=kubeconfig or light.kubeconfig).fields()
    given = {"name": "a", "namespace": "default", "access": access, "drive": True, "owner": MINE, **fields}
    one = TFJobTrigger(**WaitRequest(**given).plain())
    one.task_instance = SimpleNamespace(id="me", dag_id="d", task_id="t", run_id="r", map_index=-1, try_number=1)  # type: ignore[assignment]
    return one


async def event(one: TFJobTrigger) -> dict[str, Any]:
    (found,) = [event async for event in one.run()]
    return dict(found.payload)


# on_kill


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "removed", "upstream_failed"])
def test_on_kill_deletes_job_of_ended_task(light: LightSite, database: Asked, state: str) -> None:
    database.states = [state]
    uid = light.submit("a", MINE)
    asyncio.run(trigger(light, uid=uid).on_kill())
    assert light.uids() == []


def test_on_kill_after_event_keeps_job(light: LightSite, database: Asked) -> None:
    """Airflow also calls ``on_kill`` after the event, but then the task decides about the job."""
    uid = light.submit("a", MINE)
    light.status("a", phase="Completed")
    one = trigger(light, uid=uid, drive=False)
    assert asyncio.run(event(one))["reached"]
    asyncio.run(one.on_kill())
    assert light.uids() == [uid]
    assert database.times == 0


@pytest.mark.parametrize(
    "fields", [{"owner": ""}, {"on_kill_action": "keep_job"}], ids=["of another user", "to be kept"]
)
def test_on_kill_keeps_unowned_job_and_job_with_keep_job(
    light: LightSite, database: Asked, fields: dict[str, str]
) -> None:
    uid = light.submit("a", MINE)
    asyncio.run(trigger(light, uid=uid, **fields).on_kill())
    assert (light.uids(), database.times) == ([uid], 0), "the database need not be asked"
    assert OWNER_ANNOTATION in light.job("a")["metadata"]["annotations"]
    assert MARKED_FOR_DELETION not in light.job("a")["metadata"]["annotations"]


@pytest.mark.parametrize("owner", ["", "me/2", "other/1"], ids=["without owner", "of the next try", "of another task"])
def test_on_kill_keeps_job_of_other_owner(light: LightSite, database: Asked, owner: str) -> None:
    uid = light.submit("a", owner)
    asyncio.run(trigger(light, uid=uid).on_kill())
    assert light.uids() == [uid]
    assert MARKED_FOR_DELETION not in light.job("a")["metadata"]["annotations"]


def test_on_kill_keeps_new_job_with_same_name(light: LightSite, database: Asked) -> None:
    before = light.submit("a", MINE)
    light.cluster.delete(TFJOBS, "default", "a")
    uid = light.submit("a", MINE)
    asyncio.run(trigger(light, uid=before).on_kill())
    assert light.uids() == [uid]


def test_on_kill_keeps_job_replaced_just_before_deletion(light: LightSite, database: Asked) -> None:
    """The request has the uid as its precondition."""
    uid = light.submit("a", MINE)
    held = Fault(Kind.REFUSE, frozenset({"delete"}), times=1, code=503, retry_after=1)

    def replaced() -> str:
        until(lambda: held.times == 0, SECONDS)
        light.cluster.delete(TFJOBS, "default", "a")
        return light.submit("a", MINE)

    async def both(one: TFJobTrigger) -> str:
        other = asyncio.ensure_future(asyncio.to_thread(replaced))
        await one.on_kill()
        return await other

    with Proxy(light.address) as proxy:
        proxy.inject(held)
        new = asyncio.run(both(trigger(light, light.config(proxy.url), uid=uid)))
    assert light.uids() == [new]


def test_on_kill_ignores_missing_job(light: LightSite, database: Asked) -> None:
    asyncio.run(trigger(light, uid="gone").on_kill())
    assert database.times == 1


@pytest.mark.parametrize("state", ["running", "deferred"])
def test_on_kill_keeps_job_while_task_runs(
    light: LightSite, database: Asked, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """From then on, the running process decides about the job, so the trigger does not check again."""
    monkeypatch.setenv("AIRFLOW__TRIGGERER__ON_KILL_TIMEOUT", "300")
    database.states = [state, "failed"]
    uid = light.submit("a", MINE)
    asyncio.run(trigger(light, uid=uid).on_kill())
    assert (light.uids(), database.times) == ([uid], 1)


@pytest.mark.parametrize("state", ["queued", "up_for_retry", None])
def test_on_kill_keeps_job_of_queued_task(light: LightSite, database: Asked, state: str | None) -> None:
    database.states = [state]
    uid = light.submit("a", MINE)
    asyncio.run(trigger(light, uid=uid).on_kill())
    assert light.uids() == [uid]


def test_on_kill_deletes_job_of_task_failed_after_clear(
    light: LightSite, database: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a clear and the next try, only the former trigger can notice that the task was ended."""
    monkeypatch.setenv("AIRFLOW__TRIGGERER__ON_KILL_TIMEOUT", "300")
    database.states = [None, "queued", "failed"]
    uid = light.submit("a", MINE)
    asyncio.run(trigger(light, uid=uid).on_kill())
    assert (light.uids(), database.times) == ([], 3)


def test_on_kill_polls_queued_task_until_timeout(
    light: LightSite, database: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = light.submit("a", MINE)
    database.states = ["queued"]
    monkeypatch.setenv("AIRFLOW__TRIGGERER__ON_KILL_TIMEOUT", "6")
    asyncio.run(trigger(light, uid=uid).on_kill())
    assert light.uids() == [uid]
    assert database.times > 1


def test_on_kill_keeps_job_of_unknown_task(light: LightSite) -> None:
    uid = light.submit("a", MINE)
    one = trigger(light, uid=uid)
    one.task_instance = None  # type: ignore[assignment]
    asyncio.run(one.on_kill())
    assert light.uids() == [uid]


def test_on_kill_raises_when_cluster_forbids_deletion(light: LightSite, database: Asked) -> None:
    uid = light.submit("a", MINE)
    with Proxy(light.address) as proxy:
        proxy.inject(Fault(Kind.REFUSE, frozenset({"patch"}), times=None, code=403))
        with pytest.raises(ClusterError):
            asyncio.run(trigger(light, light.config(proxy.url), uid=uid).on_kill())
    assert light.uids() == [uid]


# The wait


def test_does_not_wait_for_job_with_other_uid(light: LightSite) -> None:
    light.submit("a")
    light.status("a", phase="Completed")
    found = asyncio.run(event(trigger(light, uid="other", drive=False)))
    assert found["outcome"]["kind"] == "deleted"


def test_waits_for_job_that_is_created_later(light: LightSite) -> None:
    """The trigger polls for the job, because the first answers were that it does not exist."""
    asked: list[Passed] = []

    def passed(one: Passed) -> None:
        if one.call.verb == "get" and one.call.resource == "tfjobs":
            asked.append(one)
            if len(asked) == 2:
                light.submit("a")
                light.status("a", phase="Completed")

    with Proxy(light.address, passed) as proxy:
        fields = {"owner": "", "drive": False, "poll_interval": 0.01}
        found = asyncio.run(event(trigger(light, light.config(proxy.url), **fields)))
    assert found["reached"]
    assert len(asked) >= 2


@pytest.mark.parametrize("request_", range(8))
def test_cancellation_during_any_request_leaves_nothing(light: LightSite, request_: int) -> None:
    """Requests in progress complete and are undone, because no other process would undo them."""
    uid = light.submit("a", MINE)
    count, cancelled = [0], threading.Event()

    async def begin(proxy: Proxy, cancel: list[Any]) -> None:
        waiting = asyncio.ensure_future(event(trigger(light, light.config(proxy.url), uid=uid)))
        loop = asyncio.get_running_loop()
        cancel.append(lambda: loop.call_soon_threadsafe(waiting.cancel))
        with pytest.raises(asyncio.CancelledError):
            await waiting

    cancel: list[Any] = []

    def passed(_: Passed) -> None:
        count[0] += 1
        if count[0] > request_ and not cancelled.is_set():
            cancelled.set()
            cancel[0]()

    with Proxy(light.address, passed) as proxy:
        asyncio.run(begin(proxy, cancel))
        assert len(SHARED_INFORMERS) == 0
        until(lambda: not [one for one in threading.enumerate() if one.name.startswith("shared-informer")], SECONDS)
    assert light.leases() == []
    assert light.uids() == [uid]


def test_resource_created_during_cancellation_is_released(light: LightSite) -> None:
    """The thread that creates an informer or a subscription cannot be stopped."""
    begun, go, undone = threading.Event(), threading.Event(), list[str]()

    def make() -> str:
        begun.set()
        assert go.wait(SECONDS)
        return "made"

    async def cancelled() -> None:
        waiting = asyncio.ensure_future(_undone_if_cancelled(make, undone.append))
        assert await asyncio.to_thread(begun.wait, SECONDS)
        waiting.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(cancelled())
    assert undone == ["made"]


def test_trigger_leaves_no_subscription_in_shared_informer(light: LightSite) -> None:
    uid = light.submit("a", MINE)
    light.status("a", phase="Completed")
    one = trigger(light, uid=uid, drive=False)
    key = (ClusterArguments.of(one.request.access), "default")
    informer = SHARED_INFORMERS.enter(key, lambda: make_shared_informer(*key, {}))
    try:
        assert asyncio.run(event(one))["reached"]
        assert informer._subscriptions == {}
        assert len(SHARED_INFORMERS) == 1
    finally:
        SHARED_INFORMERS.leave(key)

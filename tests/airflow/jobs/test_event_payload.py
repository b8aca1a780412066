"""The errors that a task derives from a trigger's event, including events of other releases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.airflow.site import document
from tests.core.builders import ended, pod
from tf_dist.airflow.jobs.event_payload import event_payload, payload_error, unseen_payload
from tf_dist.client.log_follower import LogLines
from tf_dist.client.monitor import JobSnapshot
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.cluster.api import TFJOBS
from tf_dist.core.diagnostics.metrics_parser import RESULT_MARK
from tf_dist.core.model.job import ReplicaId
from tf_dist.core.pipeline.session import lost_end
from tf_dist.errors import JobEvicted, JobFailed, TFDistError, Unavailable

LOST = lost_end(Unavailable("no answer", hint="is it up?"), transient=True)
EVENT = {**unseen_payload(LOST, "tfjob/a"), "decided": True}


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (EVENT["outcome"], Unavailable),
        ({"kind": "failed", "replica": "worker-0", "exit_code": 3}, JobFailed),
        ({"kind": "evicted"}, JobEvicted),
        ({"kind": "unheard-of"}, Unavailable),
        (None, Unavailable),
    ],
    ids=["the wait broke off", "failed", "evicted", "a kind of a later release", "none"],
)
def test_failed_wait_gives_error_of_outcome_kind(outcome: Any, expected: type[TFDistError]) -> None:
    error = payload_error({**EVENT, "outcome": outcome})
    assert type(error) is expected
    assert str(error) == "tfjob/a: no answer (is it up?)"


def test_reached_goal_is_not_error() -> None:
    assert payload_error({**EVENT, "reached": True}) is None


_VALUES = [
    "null", '""', "0", "-1", "1.5", "1e999", "NaN", "true", "[]", "{}", "1" + "0" * 400, "1" + "0" * 5000,
    str(2**64), str(-(2**63) - 1),
    '"' + "x" * 100_000 + '"', r'"\u00e9"', r'"\u0000"', r'"\ud800"', r'"\ud83d\ude00"', r'{"\u0000\udc00": "\u0001"}',
    "[" * 99 + "]" * 99, "[" * 900 + "]" * 900, "[" * 100_000, '{"a":' * 900 + "1" + "}" * 900, "{", "loss=1",
]  # fmt: skip


@pytest.mark.parametrize("value", _VALUES, ids=lambda value: value[:20])
@pytest.mark.parametrize("form", ["{}", '{{"x": {}, "loss": 0.5}}'], ids=["value", "in object"])
def test_every_result_of_program_can_be_stored(form: str, value: str) -> None:
    msgspec = pytest.importorskip("msgspec", reason="Airflow, whose processes talk in MessagePack, is missing")
    written = form.format(value)
    stored = StoredJob(TFJOBS, {**document(), "metadata": {"name": "a", "namespace": "default", "uid": "u"}})
    log = LogLines(ReplicaId("worker", 0), "worker-0", [f"{RESULT_MARK}{written}", f"checkpoint=/a\x00{value[:50]}"])
    message = pod(stored.job, "worker-0", ended(0, "Completed", written))
    for snapshot in (
        JobSnapshot(stored.job).with_lines([log], 0.0),
        JobSnapshot(stored.job).with_objects(stored.status, [message]),
    ):
        event = event_payload(stored, snapshot, LOST)
        assert msgspec.msgpack.encode(event), "a triggerer that cannot send an event ends, with all its triggers"
        plain = json.dumps(event, allow_nan=False, ensure_ascii=False)
        assert plain.encode()
        assert "\\u0000" not in plain
        assert "[" * 101 not in plain
        assert '{"a": ' * 101 not in plain

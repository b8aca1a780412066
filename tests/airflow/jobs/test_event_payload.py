"""The errors that a task derives from a trigger's event, including events of other releases."""

from __future__ import annotations

from typing import Any

import pytest

from tf_dist.airflow.jobs.event_payload import payload_error, unseen_payload
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

"""The model of a job: what holds of it by itself."""

from __future__ import annotations

from tf_dist.core.api.job import RunPolicy


def test_pauses_before_restarts_are_the_kubelets() -> None:
    backoff = RunPolicy().backoff
    assert [backoff.delay(count) for count in range(1, 9)] == [0, 10, 20, 40, 80, 160, 300, 300]

"""The logs of a job's containers: read in threads, and closed together at any moment."""

from __future__ import annotations

import threading
from typing import Any

from tests.cluster.support import FixedStream, pod
from tests.controller.harness import tfjob
from tests.waiting import until
from tf_dist.client.log_follower import ContainerInstance, LogEnded, LogFollower, LogLine
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.cluster.api import TFJOBS, Object
from tf_dist.core.api import names

SECONDS = 60


class Endless(FixedStream):
    """A stream that says nothing until it is closed."""

    def __init__(self) -> None:
        super().__init__([])
        self.closed = threading.Event()

    def __next__(self) -> bytes:
        assert self.closed.wait(SECONDS)
        raise StopIteration

    def close(self) -> None:
        self.closed.set()


def test_all_end_when_it_is_closed_one_that_is_only_being_opened_included() -> None:
    job = StoredJob(TFJOBS, {**tfjob(), "metadata": {"name": "mnist", "namespace": "default", "uid": "u"}}).job
    labels = {names.REPLICA_TYPE: "worker", names.REPLICA_INDEX: "0"}
    started = [{"name": name, "state": {"running": {}}} for name in ("open", "slow")]
    body = pod("a")
    body["metadata"] |= {"uid": "p", "labels": labels}
    streams = {"open": Endless(), "slow": Endless()}
    gate, opening, said = threading.Event(), list[str](), list[LogLine | LogEnded]()

    def open_log(_: Object, instance: ContainerInstance) -> Any:
        opening.append(instance.container)
        assert instance.container == "open" or gate.wait(SECONDS)
        return streams[instance.container]

    following = LogFollower(job, open_log, said.append)
    assert following.notice({**body, "status": {"containerStatuses": started}})
    until(lambda: len(opening) == 2, SECONDS)
    assert following.pending(lambda _: True)
    following.close()
    gate.set()
    until(lambda: len(said) == 2, SECONDS)
    assert sorted(said) == [LogEnded(ContainerInstance("p", name, 0)) for name in ("open", "slow")]
    assert not following.pending(lambda _: True)

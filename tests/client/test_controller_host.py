"""Becoming the driver of a job by writing it there."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from tests.controller.foreign_api import Pruning
from tests.controller.harness import claimed_by, tfjob
from tests.waiting import until
from tf_dist.client.connection import Connection, connect
from tf_dist.client.exit_codes import RETRYABLE, exit_code_of_error
from tf_dist.client.inline_driver import claim_job, is_driven_inline, leased_driver
from tf_dist.client.stored_jobs import now
from tf_dist.cluster.api import LEASES, TFJOBS, Cluster
from tf_dist.cluster.apiserver.server import ApiServer, make_kubeconfig
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.client.auth import Credential
from tf_dist.cluster.client.client_config import KubeContext
from tf_dist.controller.leases.lease import CONTROLLER_NAME, DRIVER_CONTROLLER, LeaseRef, new_lease
from tf_dist.core.api import names
from tf_dist.core.api.job import Dialect
from tf_dist.core.api.status_codec import stored_status, with_embedded_memory
from tf_dist.core.reconciler.ownership import driver_of, may_claim
from tf_dist.core.steps.adoption import DriverChoice
from tf_dist.errors import Conflict, NotFound, Unavailable


@pytest.mark.parametrize(
    ("choice", "dialect", "controller", "here"),
    [
        (DriverChoice.AUTO, Dialect.TFJOB_V1, True, False),
        (DriverChoice.AUTO, Dialect.TFJOB_V1, False, True),
        (DriverChoice.AUTO, Dialect.VOLCANO, True, True),
        (DriverChoice.INLINE, Dialect.TFJOB_V1, True, True),
        (DriverChoice.CONTROLLER, Dialect.TFJOB_V1, False, False),
        (DriverChoice.CONTROLLER, Dialect.VOLCANO, False, False),
    ],
)
def test_who_drives_a_job_that_is_created_now(
    choice: DriverChoice, dialect: Dialect, controller: bool, here: bool
) -> None:
    with MemoryCluster() as cluster:
        if controller:
            ref = LeaseRef(names.SYSTEM_NAMESPACE, CONTROLLER_NAME)
            body = new_lease(ref, "pod-1", 15.0, now(), {names.DRIVER: DRIVER_CONTROLLER})
            cluster.create(LEASES, ref.namespace, body)
        place: Any = "a context"
        found = Connection(cluster, "default", "a cluster", place)
        assert is_driven_inline(found, choice, dialect, "default") is here


def job(**annotations: str) -> dict[str, object]:
    document = tfjob("a")
    if annotations:
        document["metadata"]["annotations"] = annotations
    return document


def test_a_young_job_is_claimed_in_its_annotation() -> None:
    with MemoryCluster() as cluster:
        stored = cluster.create(TFJOBS, "default", job(**{names.DRIVER: "airflow"}))
        assert driver_of(claim_job(cluster, TFJOBS, stored, "default/me")) == "default/me"


def test_a_job_with_a_memory_is_claimed_there_and_nothing_else_changes() -> None:
    with MemoryCluster() as cluster:
        cluster.create(TFJOBS, "default", job())
        memory = {"phase": "Running", "driver": "default/dead", "seen": {"worker": "0-1"}}
        stored = cluster.patch(TFJOBS, "default", "a", {"status": {"tfDist": memory}}, subresource="status")
        claimed = claim_job(cluster, TFJOBS, stored, "default/me")
        assert claimed["status"]["tfDist"] == {**memory, "driver": "default/me"}


def test_a_memory_in_a_condition_is_kept_there() -> None:
    with MemoryCluster() as memory:
        cluster = cast(Cluster, Pruning(memory))
        stored = cluster.create(TFJOBS, "default", job())
        status = with_embedded_memory({"tfDist": {"phase": "Running", "driver": "default/dead"}}, "TFJob")
        stored = cluster.replace(TFJOBS, "default", "a", {**stored, "status": status}, subresource="status")
        claimed = claim_job(cluster, TFJOBS, stored, "default/me")
        assert driver_of(claimed) == "default/me"
        assert stored_status(claimed)["tfDist"]["phase"] == "Running"
        assert "annotations" not in claimed["metadata"]


def test_without_an_api_server_there_is_no_driver() -> None:
    place = KubeContext("here", "http://127.0.0.1:9", "default", {}, lambda: Credential({}))
    with (
        place.cluster() as cluster,
        pytest.raises(Unavailable) as caught,
        leased_driver(place, cluster, "default", patience=0.1),
    ):
        pytest.fail("it drives")
    assert exit_code_of_error(caught.value) == RETRYABLE


@pytest.mark.parametrize(("asked", "taken"), [({}, False), ({"takes_over": True}, True)], ids=["not asked", "asked"])
def test_a_job_that_no_driver_has_is_taken_over_where_that_is_asked_for(
    asked: dict[str, bool], taken: bool, tmp_path: Path
) -> None:
    with MemoryCluster() as memory, ApiServer(memory) as server, ExitStack() as stack:
        threads = {*threading.enumerate()}
        memory.create(TFJOBS, "default", tfjob("a"))
        config = tmp_path / "kubeconfig"
        config.write_text(json.dumps(make_kubeconfig(server.app.url, server.token)))
        connection = connect(str(config))
        stack.callback(connection.close)
        assert connection.place is not None
        _, leadership = stack.enter_context(leased_driver(connection.place, connection.cluster, "default", **asked))
        # A pass looks at the jobs in the order of their names.
        memory.create(TFJOBS, "default", claimed_by(leadership.ref, name="b"))
        until(lambda: "status" in memory.get(TFJOBS, "default", "b"), 60)
        until(lambda: not taken or "status" in memory.get(TFJOBS, "default", "a"), 60)
        stack.close()
        assert ("status" in memory.get(TFJOBS, "default", "a")) is taken
        assert "driver" not in {thread.name for thread in {*threading.enumerate()} - threads}


def test_of_two_who_claim_one_gets_it() -> None:
    with MemoryCluster() as cluster:
        stored = cluster.create(TFJOBS, "default", job())
        claim_job(cluster, TFJOBS, stored, "default/me")
        with pytest.raises(Conflict):
            claim_job(cluster, TFJOBS, stored, "default/other")
        cluster.delete(TFJOBS, "default", "a")
        with pytest.raises(NotFound):
            claim_job(cluster, TFJOBS, stored, "default/me")


@pytest.mark.parametrize(
    ("driver", "free"),
    [
        ("", True),
        ("airflow", True),
        ("default/dead", True),
        ("default/alive", False),
        ("embedded", False),
        ("default/me", False),
    ],
)
def test_who_may_be_claimed_from(driver: str, free: bool) -> None:
    assert may_claim(driver, "default/me", {"default/dead"}, reserved="airflow") is free

"""Airflow's hub on a real API server, with nothing but the role that ``tf-dist install --no-controller`` makes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from subprocess import CompletedProcess

import pytest

from tests.airflow.site import SECONDS, document
from tests.cluster.support import exists
from tests.deploy.kubelet import Kubelet
from tests.waiting import until
from tf_dist.airflow.access import Access, open_connection
from tf_dist.airflow.attending import Attendance, Wish, attend
from tf_dist.airflow.hub import Hub
from tf_dist.airflow.seat import RESERVED
from tf_dist.airflow.tickets import Ticket
from tf_dist.cluster.api import PODS, TFJOBS
from tf_dist.cluster.rest import RestCluster
from tf_dist.core import names
from tf_dist.driver.refs import JobRef
from tf_dist.errors import Forbidden

pytestmark = pytest.mark.cluster


@pytest.fixture
def drivers(kubectl: Callable[..., str], install: Callable[..., CompletedProcess[str]], namespace: str) -> str:
    """A namespace in which drivers work without a controller."""
    kubectl("apply", "-f", "-", stdin=install("--drivers", namespace, "--no-controller").stdout)
    return namespace


@pytest.fixture
def hub(config_of: Callable[[str, str], str], drivers: str) -> Iterator[Hub]:
    """As a triggerer has it that acts as the role's account."""
    found = Hub(open_connection(Access(config_file=config_of("tf-dist-driver", drivers)), {}), drivers)
    try:
        yield found
    finally:
        found.close()


def joined(hub: Hub, told: Callable[[], None], *, drive: bool) -> Ticket:
    body = document("true", name="a")
    body["metadata"]["annotations"] = {names.DRIVER: RESERVED}
    hub.cluster.create(TFJOBS, hub.namespace, body)
    return hub.join(JobRef(TFJOBS, hub.namespace, "a"), told, drive=drive)


def test_a_job_is_driven_to_its_end(admin: RestCluster, hub: Hub, room: Kubelet) -> None:
    rung = threading.Event()
    ticket = joined(hub, rung.set, drive=True)
    course = Attendance(hub, ticket, Wish(get_logs=False, results=False), lambda _: None).course()
    ends, found = {"worker-0": 0}, []

    def over() -> bool:
        room.step(ends)
        try:
            next(course)
        except StopIteration as done:
            found.append(done.value["end"])
        return bool(found)

    until(lambda: exists(admin, PODS, hub.namespace, "a-worker-0"), SECONDS)
    until(over, SECONDS)
    assert found == ["reached"]
    hub.leave(ticket)


@pytest.mark.parametrize("drive", [True, False], ids=["drives", "looks on"])
def test_a_right_that_is_missing_is_said_and_not_waited_for(kubectl: Callable[..., str], hub: Hub, drive: bool) -> None:
    without = [{"op": "remove", "path": f"/rules/{number}"} for number in _of_pods(kubectl, hub.namespace)]
    kubectl("patch", "role", "tf-dist-driver", "-n", hub.namespace, "--type=json", "-p", str(without).replace("'", '"'))
    rung = threading.Event()
    ticket = joined(hub, rung.set, drive=drive)
    course = Attendance(hub, ticket, Wish(), lambda _: None).course()
    with pytest.raises(Forbidden, match="pods"):
        attend(course, rung, lambda: None)
    hub.leave(ticket)


def _of_pods(kubectl: Callable[..., str], namespace: str) -> list[int]:
    path = "-o=jsonpath={.rules[*].resources}"
    found = kubectl("get", "role", "tf-dist-driver", "-n", namespace, path).replace("][", "] [").split()
    return [number for number, resources in enumerate(found) if resources == '["pods"]']

"""Programs that lead a namespace and see nodes (``controller=false``, ``seeNodes=true``), on a real API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.controller.harness import tfjob
from tests.deploy.kubelet import Kubelet
from tests.deploy.manifests import template
from tests.waiting import until
from tf_dist.client.connection import connect
from tf_dist.client.controller_host import hosted_controller
from tf_dist.cluster.api import PODS, TFJOBS, Object
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.core.model import names
from tf_dist.core.model.job import Dialect, JobKey

pytestmark = pytest.mark.cluster


@pytest.fixture
def seeing(kubectl: Callable[..., str], installed: str, namespace: str) -> Iterator[str]:
    """A namespace whose programs see the nodes of the cluster and admit the namespace's jobs."""
    made = template("controller=false", "seeNodes=true", f"drivers={{{namespace}}}", "crds.enabled=false")
    kubectl("apply", "-f", "-", stdin=made)
    yield namespace
    for name in ("driver", "see-nodes"):
        kubectl("delete", "clusterrolebinding", f"tf-dist-{name}-{namespace}")
    kubectl("delete", "clusterrole", "tf-dist-see-nodes")


def gang(name: str) -> Object:
    """Three workers that need almost the whole node, so they do not fit in addition to a pod of another gang."""
    document = tfjob(name, ps=0, workers=3, cleanPodPolicy="All")
    (container,) = document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["resources"] = {"requests": {"cpu": "20"}}
    del document["metadata"]["namespace"]
    return document


def test_at_most_one_gang_has_pods_in_full_cluster(
    admin: RestCluster, config_of: Callable[[str, str], str], seeing: str, room: Kubelet
) -> None:
    """Each gang is submitted by a different program. The elected leader admits all of them."""
    gangs = ("first", "second", "third")
    ended: set[str] = set()

    def step() -> bool:
        pods = {name: _pods(admin, seeing, name) for name in gangs}
        holding = [name for name in gangs if pods[name]]
        assert len(holding) <= 1, "a part of the cluster each"
        complete = [name for name in holding if len(pods[name]) == 3 and _all_bound(pods[name])]
        room.step({f"{name}-worker-0": 0 for name in complete})
        ended.update(name for name in gangs if _phase(admin, seeing, name) == "Completed")
        return len(ended) == len(gangs)

    with ExitStack() as stack:
        for name in gangs:
            connection = connect(config_of("tf-dist-driver", seeing))
            stack.callback(connection.close)
            stack.enter_context(hosted_controller(connection, Dialect.TFJOB_V1, JobKey(seeing, name)))
            connection.cluster.create(TFJOBS, seeing, gang(name))
        until(step, 90)


def _pods(admin: RestCluster, namespace: str, job: str) -> list[Object]:
    """The pods of a job that use capacity."""
    stored = admin.get(TFJOBS, namespace, job)
    found = admin.list(PODS, namespace, labels=f"{names.JOB_UID}={stored['metadata']['uid']}").items
    return [pod for pod in found if pod["status"].get("phase") not in ("Succeeded", "Failed")]


def _all_bound(pods: list[Object]) -> bool:
    return all(pod["spec"].get("nodeName") for pod in pods)


def _phase(admin: RestCluster, namespace: str, job: str) -> str:
    status = admin.get(TFJOBS, namespace, job).get("status") or {}
    return str((status.get("tfDist") or {}).get("phase", ""))

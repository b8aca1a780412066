"""Drivers without a controller that see nodes (``controller=false``, ``seeNodes=true``), on a real API server."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest
from tf_dist.client.inline_driver import inline_driver

from tests.cluster.conftest import SERVICE_ACCOUNTS
from tests.cluster.support import wait_for
from tests.controller.harness import tfjob
from tests.deploy.kubelet import Kubelet
from tests.deploy.manifests import template
from tests.waiting import until
from tf_dist.client.connection import connect
from tf_dist.cluster.api import NAMESPACES, PODS, TFJOBS, Object
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.core.api import names
from tf_dist.core.api.job import Dialect, JobKey
from tf_dist.errors import NotFound

pytestmark = pytest.mark.cluster


@pytest.fixture
def spaces(
    admin: RestCluster, kubectl: Callable[..., str], installed: str, namespace: str
) -> Iterator[tuple[str, str]]:
    """Two namespaces whose drivers decide together."""
    other = f"test-{secrets.token_hex(4)}"
    admin.create(NAMESPACES, None, {"metadata": {"name": other}})
    wait_for(admin, SERVICE_ACCOUNTS, other, "default", lambda account: account is not None)
    made = template("controller=false", "seeNodes=true", f"drivers={{{namespace},{other}}}", "crds.enabled=false")
    kubectl("apply", "-f", "-", stdin=made)
    yield namespace, other
    for name in ("driver", "see-nodes"):
        kubectl("delete", "clusterrolebinding", *(f"tf-dist-{name}-{one}" for one in (namespace, other)))
    kubectl("delete", "clusterrole", "tf-dist-see-nodes", "tf-dist-verdicts")
    with suppress(NotFound):
        admin.delete(NAMESPACES, None, other)


def gang(name: str) -> Object:
    """Three workers that want nearly the whole node: there is no room beside one pod of another gang."""
    document = tfjob(name, ps=0, workers=3, cleanPodPolicy="All")
    (container,) = document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["resources"] = {"requests": {"cpu": "20"}}
    del document["metadata"]["namespace"]
    return document


def test_of_three_gangs_too_large_for_the_cluster_no_two_ever_hold_a_part_of_it(
    admin: RestCluster, config_of: Callable[[str, str], str], spaces: tuple[str, str], room: Kubelet
) -> None:
    gangs = {"first": spaces[0], "second": spaces[0], "third": spaces[1]}
    kubelets = [room, Kubelet(admin, spaces[1])]
    ended: set[str] = set()

    def step() -> bool:
        pods = {name: _pods(admin, where, name) for name, where in gangs.items()}
        holding = [name for name in gangs if pods[name]]
        assert len(holding) <= 1, "a part of the cluster each"
        complete = [name for name in holding if len(pods[name]) == 3 and _all_bound(pods[name])]
        ends = {f"{name}-worker-0": 0 for name in complete}
        for kubelet in kubelets:
            kubelet.step(ends)
        ended.update(name for name, where in gangs.items() if _phase(admin, where, name) == "Completed")
        return len(ended) == len(gangs)

    with ExitStack() as stack:
        for name, where in gangs.items():
            connection = connect(config_of("tf-dist-driver", where))
            stack.callback(connection.close)
            key = JobKey(where, name)
            annotations = stack.enter_context(inline_driver(connection, Dialect.TFJOB_V1, key, takes_over=False))
            document = gang(name)
            document["metadata"]["annotations"] = dict(annotations)
            connection.cluster.create(TFJOBS, where, document)
        until(step, 90)


def _pods(admin: RestCluster, namespace: str, job: str) -> list[Object]:
    """Pods of a job that hold something."""
    stored = admin.get(TFJOBS, namespace, job)
    found = admin.list(PODS, namespace, labels=f"{names.JOB_UID}={stored['metadata']['uid']}").items
    return [pod for pod in found if pod["status"].get("phase") not in ("Succeeded", "Failed")]


def _all_bound(pods: list[Object]) -> bool:
    return all(pod["spec"].get("nodeName") for pod in pods)


def _phase(admin: RestCluster, namespace: str, job: str) -> str:
    status = admin.get(TFJOBS, namespace, job).get("status") or {}
    return str((status.get("tfDist") or {}).get("phase", ""))

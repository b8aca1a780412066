"""The shared informer of Airflow on a real API server, with only the role ``tf-dist-driver``."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.airflow.site import SECONDS, document
from tests.cluster.support import exists
from tests.deploy.kubelet import Kubelet
from tests.waiting import until
from tf_dist.airflow.hooks.kubernetes_connection import ClusterArguments, open_connection
from tf_dist.airflow.informers.job_informer import SharedJobInformer
from tf_dist.airflow.informers.subscription import Subscription
from tf_dist.airflow.jobs.job_waiter import JobWaiter, WaitOptions, take_in_thread
from tf_dist.client.wait import run_in_thread
from tf_dist.cluster.api import PODS, TFJOBS
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.controller.settings import JobRef
from tf_dist.errors import Forbidden

pytestmark = pytest.mark.cluster


@pytest.fixture
def informer(config_of: Callable[[str, str], str], drivers: str) -> Iterator[SharedJobInformer]:
    """The informer of a triggerer that uses the role's service account."""
    found = SharedJobInformer(
        open_connection(ClusterArguments(config_file=config_of("tf-dist-driver", drivers)), {}), drivers
    )
    try:
        yield found
    finally:
        found.close()


def joined(informer: SharedJobInformer, told: Callable[[], None], *, drive: bool) -> Subscription:
    body = document("true", name="a")
    informer.cluster.create(TFJOBS, informer.namespace, body)
    return informer.join(JobRef(TFJOBS, informer.namespace, "a"), told, drive=drive)


def test_driver_role_suffices_to_run_job(admin: RestCluster, informer: SharedJobInformer, room: Kubelet) -> None:
    changed = threading.Event()
    subscription = joined(informer, changed.set, drive=True)
    steps = JobWaiter(informer, subscription, WaitOptions(get_logs=False, results=False), lambda *_: None).steps()
    next(steps)
    ends, found = {"worker-0": 0}, []

    def over() -> bool:
        room.step(ends)
        try:
            steps.send(subscription.take(0))
        except StopIteration as done:
            found.append(done.value["reached"])
        return bool(found)

    until(lambda: exists(admin, PODS, informer.namespace, "a-worker-0"), SECONDS)
    until(over, SECONDS)
    assert found == [True]
    informer.leave(subscription)


@pytest.mark.parametrize("drive", [True, False], ids=["drives", "looks on"])
def test_missing_permission_raises_forbidden_without_waiting(
    kubectl: Callable[..., str], informer: SharedJobInformer, drive: bool
) -> None:
    home = ("-n", informer.namespace)
    role = json.loads(kubectl("get", "clusterrole", "tf-dist-driver", "-o", "json"))
    rules = [
        {**rule, "resources": kept}
        for rule in role["rules"]
        if (kept := [one for one in rule["resources"] if one != "pods"])
    ]
    kubectl("apply", *home, "-f", "-", stdin={**role, "kind": "Role", "metadata": {"name": "no-pods"}, "rules": rules})
    kubectl("delete", "rolebinding", "tf-dist-driver", *home)
    account = f"--serviceaccount={informer.namespace}:tf-dist-driver"
    kubectl("create", "rolebinding", "tf-dist-driver", "--role=no-pods", account, *home)
    changed = threading.Event()
    subscription = joined(informer, changed.set, drive=drive)
    steps = JobWaiter(informer, subscription, WaitOptions(), lambda *_: None).steps()
    with pytest.raises(Forbidden, match="pods"):
        run_in_thread(steps, take_in_thread(subscription, changed, lambda: None))
    informer.leave(subscription)

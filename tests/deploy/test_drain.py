"""``kubectl drain`` on a real API server: pods of a job are replaced without counting as restarts."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.controller.harness import tfjob
from tests.deploy.kubelet import Kubelet
from tests.deploy.roles import Life, short
from tf_dist.cluster.api import TFJOBS
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.controller.controller import Controller
from tf_dist.controller.settings import ControllerSettings
from tf_dist.core.model import names

pytestmark = pytest.mark.cluster


def test_drain_counts_as_disruption_and_not_as_restart(
    admin: RestCluster, kubectl: Callable[..., str], room: Kubelet, namespace: str
) -> None:
    driver = Controller(admin, settings=ControllerSettings(volcano_jobs=False))
    document = short(tfjob(workers=2, ps=1, backoffLimit=0))
    stored = admin.create(TFJOBS, namespace, document)
    life = Life(admin, driver, room, TFJOBS, stored)
    life.until(lambda: life.memory().get("phase") == "Running")
    node = f"node-{namespace}"
    # Only this node has free capacity, so pods that other tests have installed may run there, with volumes.
    mine = f"--pod-selector={names.JOB_UID}={stored['metadata']['uid']}"
    drain = threading.Thread(target=kubectl, args=("drain", node, "--force", "--ignore-daemonsets", mine), daemon=True)
    drain.start()
    life.until(lambda: sum(life.memory().get("disruptions", {}).values()) == 3 and not drain.is_alive())
    kubectl("uncordon", node)
    life.until(
        lambda: life.memory().get("phase") == "Running" and life.memory()["counts"]["worker"].get("running") == 2
    )
    assert "restarts" not in life.memory()

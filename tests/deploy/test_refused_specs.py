"""A running job on a real API server gets an invalid spec by ``kubectl patch``, and is corrected later."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.controller.harness import tfjob
from tests.deploy.kubelet import Kubelet
from tests.waiting import until
from tf_dist.cluster.api import PODS, TFJOBS
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.controller.controller import Controller
from tf_dist.controller.settings import ControllerSettings
from tf_dist.core.model.status_codec import stored_status

pytestmark = pytest.mark.cluster


def condition(admin: RestCluster, namespace: str, type_: str) -> dict[str, Any]:
    status = stored_status(admin.get(TFJOBS, namespace, "mnist"))
    return next((one for one in status.get("conditions") or () if one["type"] == type_), {})


def pods(admin: RestCluster, namespace: str) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in admin.list(PODS, namespace).items}


def test_invalid_edit_has_no_effect_and_correction_is_accepted(
    admin: RestCluster, kubectl: Callable[..., str], namespace: str, room: Kubelet
) -> None:
    document = tfjob()
    document["metadata"]["namespace"] = namespace
    admin.create(TFJOBS, namespace, document)

    def edit(patch: dict[str, Any], then: str) -> None:
        kubectl("patch", "tfjob", "mnist", "-n", namespace, "--type=merge", "-p", json.dumps(patch))
        until(lambda: driver.step() >= 0 and says("SpecAccepted", then), 60)

    def says(type_: str, status: str) -> bool:
        room.step({})
        return condition(admin, namespace, type_).get("status") == status

    driver = Controller(admin, settings=ControllerSettings(namespace=namespace, volcano_jobs=False))
    until(lambda: driver.step() >= 0 and says("Running", "True"), 60)
    assert condition(admin, namespace, "SpecAccepted")["observedGeneration"] == 1
    before = pods(admin, namespace)
    driver.stop()
    # Another controller takes over, and reads the accepted spec before it is replaced.
    driver = Controller(admin, settings=ControllerSettings(namespace=namespace, volcano_jobs=False))
    until(lambda: driver.step() >= 0 and says("Running", "True"), 60)
    nothing = {"metadata": {"annotations": {"tf-dist.dev/max-workers": "1"}}}
    edit(nothing | {"spec": {"runPolicy": {"schedulingPolicy": {"queue": "x"}}}}, "False")
    refused = condition(admin, namespace, "SpecAccepted")
    assert (refused["reason"], refused["observedGeneration"]) == ("InvalidSpec", 2)
    assert "tf-dist.dev/max-workers" in refused["message"]
    assert "generation 1 stays in force" in refused["message"]
    assert pods(admin, namespace) == before
    assert says("Running", "True")
    edit({"metadata": {"annotations": {"tf-dist.dev/max-workers": None}}}, "True")
    assert condition(admin, namespace, "SpecAccepted")["observedGeneration"] == 2
    assert pods(admin, namespace) == before
    driver.stop()

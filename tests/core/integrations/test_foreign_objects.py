"""Objects of other gang schedulers with arbitrary values: no pass of a job raises an error for them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.integrations.scenes import SERVED, Scene, admission, asking, condition
from tests.core.malformed import bombs_at, disfigured, places, put
from tests.thorough import thorough
from tf_dist.core.model.context import ServedApis, WriteStatus
from tf_dist.core.model.gang_scheduler import GangScheduler
from tf_dist.core.model.status_codec import dump_status

STATUS: Mapping[str, Any] = {
    "phase": "Inqueue",
    "conditions": [condition(type_) for type_ in ("QuotaReserved", "Admitted", "Evicted", "DisruptionTarget")],
    "admission": {
        "podSetAssignments": [
            {**one, "topologyAssignment": {"levels": []}} for one in admission(worker=2)["podSetAssignments"]
        ]
    },
    "admissionChecks": [
        {
            "name": "c",
            "state": "Ready",
            "message": "m",
            "podSetUpdates": [{"name": "worker", "labels": {"a": "b"}, "nodeSelector": {"a": "b"}, "tolerations": []}],
        }
    ],
    "requeueState": {"count": 1, "requeueAt": "2027-01-15T08:00:00Z"},
}
SCHEDULERS = {
    "kueue": (GangScheduler.KUEUE, SERVED),
    "volcano": (GangScheduler.VOLCANO, ServedApis(versions={"PodGroup.scheduling.volcano.sh": "v1beta1"})),
    "coscheduling": (GangScheduler.COSCHEDULING, ServedApis(versions={"PodGroup.scheduling.x-k8s.io": "v1alpha1"})),
    "native": (GangScheduler.WORKLOAD, ServedApis(versions={"PodGroup.scheduling.k8s.io": "v1beta1"})),
}


def lives(name: str, *, spec: Any = None, status: Any = None, flavor: Any = None, place: bool) -> None:
    """Passes of a job before and after (``place``) its admission, with such an object."""
    gang, served = SCHEDULERS[name]
    scene = Scene(asking(gang), served)
    scene.settle()
    if place:
        scene.tell(
            phase="Running", conditions=[condition("QuotaReserved"), condition("Admitted")], **admission_of(name)
        )
        scene.settle()
        scene.bind()
        scene.look()
    there = scene.gang()
    if spec is not None:
        there["spec"] = spec
    if status is not None:
        there["status"] = status
    if flavor is not None:
        scene.served = replace(served, shared=dict.fromkeys(served.shared, flavor))
    for _ in range(3):
        scene.look()


def admission_of(name: str) -> dict[str, Any]:
    return {"admission": admission(ps=1, worker=2)} if name == "kueue" else {}


def spec_of(name: str) -> dict[str, Any]:
    gang, served = SCHEDULERS[name]
    scene = Scene(asking(gang), served)
    scene.settle()
    return {"spec": scene.gang()["spec"]}


@pytest.mark.thorough
@pytest.mark.parametrize("place", [False, True])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_pass_survives_bombs_in_gang_object(name: str, place: bool) -> None:
    for part, whole in (("status", {"status": dict(STATUS)}), ("spec", spec_of(name))):
        for position, path in enumerate(places(whole)):
            for bomb in bombs_at(position, every=3):
                found = copy.deepcopy(whole)
                put(found, path, bomb)
                lives(name, **{part: found[part]}, place=place)


@pytest.mark.parametrize("name", SCHEDULERS)
@given(data=st.data(), place=st.booleans())
@thorough(60)
def test_pass_survives_arbitrary_status_of_gang_object(name: str, data: st.DataObject, place: bool) -> None:
    lives(name, status=data.draw(disfigured({"status": dict(STATUS)}))["status"], place=place)


@pytest.mark.parametrize("name", ["kueue", "volcano", "native"])
def test_long_message_of_gang_scheduler_is_shortened_once(name: str) -> None:
    gang, served = SCHEDULERS[name]
    types = {"kueue": "QuotaReserved", "volcano": "Unschedulable", "native": "DisruptionTarget"}
    told = condition(types[name], value=name != "kueue", message="é" * 1_000_000)
    scene = Scene(asking(gang), served)
    scene.settle()
    if name == "native":  # the message of a preemption
        scene.bind()
        scene.settle()
    scene.tell(phase="Pending", conditions=[told])
    scene.now += 60
    assert any(isinstance(action, WriteStatus) for action in scene.look().actions)
    assert "ééé" in scene.status.message
    assert len(str(dump_status(scene.status))) < 20_000
    scene.now += 60
    assert not any(isinstance(action, WriteStatus) for action in scene.look().actions)


@given(data=st.data())
@thorough(60)
def test_pass_survives_arbitrary_resource_flavor(data: st.DataObject) -> None:
    sound = {"spec": {"nodeLabels": {"pool": "spot"}, "tolerations": [{"key": "spot", "operator": "Exists"}]}}
    lives("kueue", flavor=data.draw(disfigured(sound)), place=True)

"""Invalid specs: a running job continues with its last accepted spec, and a job that never ran waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.controller.harness import Crash, CrashingCluster, World, container, disturbed, replica, tfjob
from tf_dist.cluster.api import EVENTS, PODS, TFJOBS, TFJOBS_V1ALPHA1, VOLCANO_JOBS, Object, Resource
from tf_dist.controller.controller import Controller
from tf_dist.core.model.status_codec import load_status, stored_status


@pytest.fixture
def world() -> World:
    return World()


Patch = dict[str, Any]
WORKER: Final = ("spec", "tfReplicaSpecs", "Worker")


def at(*path: str, value: object) -> Patch:
    for key in reversed(path):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def annotated(key: str, value: str | None) -> Patch:
    return at("metadata", "annotations", f"tf-dist.dev/{key}", value=value)


EDITS: Final[dict[str, Patch]] = {
    "fewer than it has": annotated("max-workers", "1"),
    "no number": annotated("max-workers", "many"),
    "less than nothing": at(*WORKER, "replicas", value=-1),
    "to zero": at(*WORKER, "replicas", value=0),
    "text": at(*WORKER, "replicas", value="three"),
    "never enough": at("spec", "runPolicy", "schedulingPolicy", value={"minAvailable": 9}),
    "no template": at(*WORKER, "template", value=None),
    "no mapping": at(*WORKER, "template", "spec", "containers", value="none"),
    "unknown type": at("spec", "tfReplicaSpecs", "Workre", value=replica(1)),
    "two chiefs": at("spec", "tfReplicaSpecs", value={"Chief": replica(1), "Master": replica(1)}),
    "unknown policy": at(*WORKER, "restartPolicy", value="Sometimes"),
    "unknown gang scheduler": annotated("gang-scheduler", "unknown"),
    "no number of disruptions": annotated("max-disruptions", "many"),
    "no time to recover in": annotated("recovery-timeout", "soon"),
    "nothing": {"spec": None},
}


def volcano(**spec: Any) -> Object:
    workers = {"name": "worker", "replicas": 2, "template": {"spec": {"containers": [container()]}}}
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "mnist", "namespace": "default"},
        "spec": {"minAvailable": 2, "tasks": [workers], **spec},
    }


def v1alpha1(**spec: Any) -> Object:
    master = {"tfReplicaType": "MASTER", "template": {"spec": {"containers": [container()]}}}
    return {
        "apiVersion": "kubeflow.org/v1alpha1",
        "kind": "TFJob",
        "metadata": {"name": "mnist", "namespace": "default"},
        "spec": {"replicaSpecs": [master], **spec},
    }


def runs(world: World, document: Object | None = None, resource: Resource = TFJOBS) -> None:
    document = document or tfjob()
    world.run_job(document, TFJOBS_V1ALPHA1 if document["apiVersion"] == TFJOBS_V1ALPHA1.api_version else resource)


def edit(world: World, patch: Patch, resource: Resource = TFJOBS) -> None:
    world.memory.patch(resource, "default", "mnist", patch)


def condition(world: World, type_: str = "SpecAccepted") -> dict[str, Any]:
    return next((one for one in world.job()["status"]["conditions"] if one["type"] == type_), {})


def said(world: World, reason: str) -> list[str]:
    return [message for found, message in world.events() if found == reason]


@pytest.mark.parametrize("patch", EDITS.values(), ids=EDITS)
def test_invalid_edit_does_not_affect_running_job(world: World, patch: Patch) -> None:
    runs(world)
    before = world.pods()
    edit(world, patch)
    world.settle()
    assert world.pods() == before
    assert world.status()["phase"] == "Running"
    assert world.status()["why"] == "InvalidSpec"
    refused = condition(world)
    assert (refused["status"], refused["reason"]) == ("False", "InvalidSpec")
    assert refused["observedGeneration"] == world.job()["metadata"]["generation"]
    assert "generation 1 stays in force" in refused["message"]
    assert world.job()["status"]["conditions"][-1]["type"] == "Running"
    assert said(world, "InvalidSpec") == [refused["message"]]


def test_condition_lists_all_problems_of_edit(world: World) -> None:
    runs(world)
    edit(world, {"spec": {"tfReplicaSpecs": {"Worker": {"replicas": -1}, "PS": {"template": None}}}})
    world.settle()
    assert "spec.tfReplicaSpecs.Worker.replicas: must not be negative, not -1" in condition(world)["message"]
    assert "spec.tfReplicaSpecs.PS.template" in condition(world)["message"]


@pytest.mark.parametrize("patch", EDITS.values(), ids=EDITS)
def test_job_completes_with_accepted_spec_after_invalid_edit(world: World, patch: Patch) -> None:
    runs(world)
    edit(world, patch)
    world.settle()
    world.end_pod("mnist-worker-1", 137)
    world.settle()
    assert world.status()["restarts"] == {"PodFailed": 1}
    world.run_pods()
    world.settle()
    assert set(world.phases().values()) == {"Running"}
    world.end_pod("mnist-worker-0", 0)
    world.remove_pods()
    assert world.status()["phase"] == "Completed"
    assert world.status()["why"] == "JobSucceeded"


def test_corrected_spec_takes_effect(world: World) -> None:
    runs(world)
    edit(world, annotated("max-workers", "1"))
    world.settle()
    edit(world, {**annotated("max-workers", None), **at(*WORKER, "replicas", value=3)})
    world.settle()
    world.clock.now += 60
    world.settle()
    world.bury()
    world.start_pods()
    assert "mnist-worker-2" in world.phases()
    accepted = condition(world)
    assert (accepted["status"], accepted["reason"], accepted["observedGeneration"]) == ("True", "Accepted", 2)
    assert world.status()["why"] == "JobRunning"
    assert said(world, "SpecAccepted") == ["the spec is accepted again"]


def test_nothing_is_written_while_spec_stays_refused(world: World) -> None:
    runs(world)
    edit(world, EDITS["text"])
    world.settle()
    before = world.memory.list(TFJOBS).resource_version, world.memory.list(EVENTS).resource_version
    for _ in range(10):
        world.clock.now += 300
        assert world.controller.step() == 0
    world.controller = Controller(world.cluster, clock=world.clock)
    assert world.controller.step() == 0
    assert (world.memory.list(TFJOBS).resource_version, world.memory.list(EVENTS).resource_version) == before


def accepted(world: World) -> dict[str, Any]:
    return dict(stored_status(world.job())["tfDist"]["acceptedSpec"])


def test_status_contains_accepted_spec_only_while_edit_is_refused(world: World) -> None:
    """`kubectl describe` shows the status, so it must not repeat the spec or contain unreadable text."""
    runs(world)
    spec = world.job()["spec"]
    assert accepted(world).keys() == {"generation", "digest"}
    edit(world, {**annotated("max-workers", "1"), **EDITS["text"]})
    world.settle()
    assert accepted(world)["document"] == {"spec": spec, "annotations": {}, "labels": {}}
    edit(world, {**annotated("max-workers", None), **at(*WORKER, "replicas", value=2)})
    world.settle()
    assert accepted(world).keys() == {"generation", "digest"}


def test_accepted_spec_stays_in_force_when_controller_restarts_after_refusal(world: World) -> None:
    runs(world)
    edit(world, EDITS["no template"])
    world.settle()
    edit(world, annotated("max-workers", "many"))
    world.controller = Controller(world.cluster, clock=world.clock)
    world.settle()
    assert "generation 1 stays in force" in condition(world)["message"]
    world.end_pod("mnist-worker-1", 137)
    world.settle()
    assert world.status()["restarts"] == {"PodFailed": 1}


def test_invalid_edit_while_controller_is_down_does_not_change_pods(world: World) -> None:
    runs(world)
    before = world.pods()
    edit(world, EDITS["no template"])
    edit(world, annotated("max-workers", "1"))
    world.controller = Controller(world.cluster, clock=world.clock)
    world.settle()
    assert world.pods() == before
    assert "its pods are not changed" in condition(world)["message"]
    edit(world, {**at(*WORKER, "template", value=replica(1)["template"]), **annotated("max-workers", None)})
    world.controller = Controller(world.cluster, clock=world.clock)
    world.settle()
    assert world.pods() == before
    assert condition(world)["status"] == "True"


def broken() -> Object:
    return tfjob(workers=-1)


def broken_v1alpha1() -> Object:
    return v1alpha1(**{"min-instance": "two"})


def broken_volcano() -> Object:
    return volcano(minAvailable=7)


MENDED: Final[dict[Callable[[], Object], tuple[Patch, Resource]]] = {
    broken: (at(*WORKER, "replicas", value=2), TFJOBS),
    broken_v1alpha1: ({"spec": {"min-instance": None}}, TFJOBS),
    broken_volcano: ({"spec": {"minAvailable": 1}}, VOLCANO_JOBS),
}


@pytest.mark.parametrize("document", MENDED)
def test_new_job_with_invalid_spec_waits_and_starts_when_corrected(
    world: World, document: Callable[[], Object]
) -> None:
    patch, resource = MENDED[document]
    world.submit(document(), TFJOBS_V1ALPHA1 if document is broken_v1alpha1 else resource)
    world.settle()
    assert world.phases() == {}
    status = world.status(resource=resource)
    assert (status["phase"], status["why"], status["state"]) == ("Pending", "InvalidSpec", "Pending")
    assert "the job starts when this is corrected" in said(world, "InvalidSpec")[0]
    shown = str(world.job(resource=resource)["status"])
    assert "the job starts when this is corrected" in shown
    version = world.memory.list(resource).resource_version
    world.clock.now += 3600
    assert world.controller.step() == 0
    assert world.memory.list(resource).resource_version == version
    edit(world, patch, resource)
    world.start_pods()
    assert world.status(resource=resource)["phase"] == "Running"
    assert "InvalidSpec" not in str(world.job(resource=resource)["status"])


def test_condition_lists_all_problems_of_new_job(world: World) -> None:
    document = tfjob()
    document["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] = "two"
    document["spec"]["tfReplicaSpecs"]["PS"]["template"] = {}
    world.submit(document)
    world.settle()
    assert "spec.tfReplicaSpecs.Worker.replicas" in condition(world)["message"]
    assert "spec.tfReplicaSpecs.PS.template" in condition(world)["message"]


def test_new_job_with_invalid_spec_uses_no_capacity(world: World) -> None:
    world.submit(tfjob("aaa", workers=7, restartPolicy="?", backoffLimit=-1))
    world.submit(tfjob("zzz", workers=7))
    world.settle()
    assert "zzz-worker-6" in world.phases()


@pytest.mark.parametrize("document", [tfjob, v1alpha1, volcano])
def test_running_job_of_every_dialect_reports_refused_edit(world: World, document: Callable[[], Object]) -> None:
    resource = VOLCANO_JOBS if document is volcano else TFJOBS
    runs(world, document(), resource)
    before = world.pods()
    world.memory.patch(resource, "default", "mnist", annotated("gang-scheduler", "unknown"))
    world.settle()
    assert world.pods() == before
    assert "is not a gang scheduler that tf-dist knows" in str(world.job(resource=resource)["status"])
    assert world.status(resource=resource)["phase"] == "Running"


def test_job_with_refused_spec_can_be_suspended_and_resumed(world: World) -> None:
    runs(world)
    edit(world, EDITS["text"])
    world.settle()
    edit(world, {"spec": {"runPolicy": {"suspend": True}}})
    world.remove_pods()
    assert world.phases() == {}
    assert world.status()["state"] == "Suspended"
    edit(world, {"spec": {"runPolicy": {"suspend": False}}})
    world.settle()
    assert sorted(world.phases()) == ["mnist-ps-0", "mnist-worker-0", "mnist-worker-1"]
    assert condition(world)["status"] == "False"


def test_suspended_job_stays_suspended_after_invalid_edit(world: World) -> None:
    runs(world)
    edit(world, {"spec": {"runPolicy": {"suspend": True}}})
    world.remove_pods()
    edit(world, {"spec": {"runPolicy": {"suspend": False}, "tfReplicaSpecs": {"Worker": {"replicas": -1}}}})
    world.settle()
    assert world.phases() == {}
    assert (world.status()["state"], condition(world)["status"]) == ("Suspended", "False")


@pytest.mark.parametrize("code", [0, 1])
def test_invalid_edit_does_not_change_status_of_finished_job(world: World, code: int) -> None:
    runs(world, tfjob(ttlSecondsAfterFinished=60))
    world.end_pod("mnist-worker-0", code)
    world.remove_pods()
    ended = world.job()["status"]
    edit(world, EDITS["text"])
    world.settle()
    assert world.job()["status"] == ended
    world.clock.now += 61
    world.settle()
    assert world.memory.list(TFJOBS).items == []


def large_job() -> Object:
    """A job whose spec is too large to be stored twice in the document."""
    document = tfjob()
    document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["args"] = ["x" * 300_000]
    return document


def old_memory(world: World) -> None:
    """Write the memory as an older controller did, without the accepted spec."""
    stored = world.job()
    memory = {key: value for key, value in stored["status"]["tfDist"].items() if key != "acceptedSpec"}
    status = {**stored["status"], "tfDist": memory}
    world.memory.replace(TFJOBS, "default", "mnist", {**stored, "status": status}, subresource="status")


@pytest.mark.parametrize("kept", [False, True], ids=["too large", "written by an older driver"])
def test_invalid_edit_without_stored_spec_does_not_change_pods(world: World, kept: bool) -> None:
    runs(world, tfjob() if kept else large_job())
    if kept:
        old_memory(world)
    before = world.pods()
    edit(world, EDITS["text"])
    world.controller = Controller(world.cluster, clock=world.clock)
    world.settle()
    assert world.pods() == before
    assert "its pods are not changed, and nothing is restarted" in condition(world)["message"]
    assert world.status()["phase"] == "Running"
    world.end_pod("mnist-worker-1", 137)
    world.settle()
    assert world.phases()["mnist-worker-1"] == "Failed"
    edit(world, at(*WORKER, "replicas", value=2))
    world.settle()
    assert world.status()["restarts"] == {"PodFailed": 1}
    assert condition(world)["status"] == "True"


def test_capacity_of_job_without_stored_spec_stays_in_use(world: World) -> None:
    runs(world, tfjob(workers=6))
    old_memory(world)
    edit(world, EDITS["text"])
    world.controller = Controller(world.cluster, clock=world.clock)
    world.submit(tfjob("other", workers=6))
    world.settle()
    assert world.status("other")["phase"] == "Pending"
    assert len(world.phases()) == 7


def test_spec_of_job_of_older_controller_is_stored_immediately(world: World) -> None:
    runs(world)
    old_memory(world)
    world.controller = Controller(world.cluster, clock=world.clock)
    world.settle()
    assert load_status(stored_status(world.job())).accepted_spec is not None


@pytest.mark.parametrize("kept", [{}, {"spec": 5}, {"spec": {}, "annotations": []}, {"labels": {"a": 1}}])
def test_unreadable_stored_spec_is_ignored(world: World, kept: Patch) -> None:
    runs(world)
    edit(world, EDITS["text"])
    world.settle()
    stored = world.job()
    stored["status"]["tfDist"]["acceptedSpec"]["document"] = kept
    world.memory.replace(TFJOBS, "default", "mnist", stored, subresource="status")
    before = world.pods()
    world.controller = Controller(world.cluster, clock=world.clock)
    world.settle()
    assert world.pods() == before
    assert condition(world)["status"] == "False"


@pytest.mark.parametrize("after", range(1, 5))
def test_next_controller_continues_after_crash_during_edits(after: int) -> None:
    world = World()
    runs(world)
    before = world.pods()
    crashing = CrashingCluster(world.memory)
    crashing.after = after
    for patch in (EDITS["text"], at(*WORKER, "replicas", value=2)):
        edit(world, patch)
        crashing.writes = 0
        world.controller = Controller(crashing, clock=world.clock)  # type: ignore[arg-type]
        try:
            world.settle()
        except Crash:
            world.controller = Controller(world.memory, clock=world.clock)
            world.settle()
    assert world.pods() == before
    assert condition(world)["status"] == "True"


def test_spec_is_stored_before_pods_are_created(world: World) -> None:
    seen: list[object] = []

    def look(verb: str, *arguments: Any, **_: Any) -> None:
        if verb == "create" and arguments[0] is PODS:
            seen.append(load_status(stored_status(world.job())).accepted_spec)

    world.controller = Controller(disturbed(world.memory, look), clock=world.clock)
    world.submit(tfjob())
    world.settle()
    assert len(seen) == 3
    assert None not in seen


def test_missing_runtime_id_is_written_into_spec(world: World) -> None:
    runs(world, v1alpha1())
    stored = world.cluster.get(TFJOBS_V1ALPHA1, "default", "mnist")
    (pod,) = world.cluster.list(PODS, "default").items
    assert stored["spec"]["RuntimeId"] == pod["metadata"]["labels"]["runtime_id"]
    assert load_status(stored_status(stored)).refused_spec is None
    version = stored["metadata"]["resourceVersion"]
    world.settle()
    assert world.cluster.get(TFJOBS_V1ALPHA1, "default", "mnist")["metadata"]["resourceVersion"] == version


@pytest.mark.parametrize("own", [{}, {"RuntimeId": "some-runtime-id"}])
def test_runtime_id_missing_in_replacement_is_kept(world: World, own: dict[str, str]) -> None:
    """`kubectl replace` with the original job file leaves it out."""
    runs(world, v1alpha1(**own))
    stored = world.cluster.get(TFJOBS_V1ALPHA1, "default", "mnist")
    before = [pod["metadata"]["uid"] for pod in world.cluster.list(PODS, "default").items]
    spec = {key: value for key, value in stored["spec"].items() if key != "RuntimeId"}
    world.cluster.replace(TFJOBS_V1ALPHA1, "default", "mnist", {**stored, "spec": spec})
    world.settle()
    again = world.cluster.get(TFJOBS_V1ALPHA1, "default", "mnist")
    assert again["spec"]["RuntimeId"] == stored["spec"]["RuntimeId"]
    assert load_status(stored_status(again)).refused_spec is None
    assert [pod["metadata"]["uid"] for pod in world.cluster.list(PODS, "default").items] == before


def test_runtime_id_of_user_is_kept(world: World) -> None:
    runs(world, v1alpha1(RuntimeId="some-runtime-id"))
    assert world.cluster.get(TFJOBS_V1ALPHA1, "default", "mnist")["spec"]["RuntimeId"] == "some-runtime-id"


@pytest.mark.parametrize("key", ["newer", "max-instances"])
def test_stored_job_with_unknown_keys_runs_and_reports_keys_once(world: World, key: str) -> None:
    runs(world, v1alpha1(**{key: 2}))
    assert world.status()["phase"] == "Running"
    (message,) = said(world, "UnknownFields")
    assert f"spec.{key}: unknown key" in message

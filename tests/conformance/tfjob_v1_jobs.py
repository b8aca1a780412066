"""TFJobs as the training operator's own tests make them (``pkg/controller.v1/tensorflow/testutil``), in a World."""

from __future__ import annotations

from typing import Any

from tests.core.world import World
from tf_dist.core.dialects import parse
from tf_dist.core.model.context import EmitEvent

NAME = "test-tfjob"
TYPES = {"chief": "Chief", "master": "Master", "ps": "PS", "worker": "Worker", "evaluator": "Evaluator"}


def template() -> dict[str, Any]:
    container = {"name": "tensorflow", "image": "registry.example/tf:1", "args": ["Fake", "Fake"]}
    return {"spec": {"containers": [container]}}


def document(restart: str | None = None, namespace: str = "default", /, **counts: int) -> dict[str, Any]:
    """A TFJob with these numbers of replicas. Types with 0 replicas are left out."""
    policy = {} if restart is None else {"restartPolicy": restart}
    specs = {TYPES[type_]: {"replicas": count, "template": template(), **policy} for type_, count in counts.items()}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": NAME, "namespace": namespace, "uid": "uid-1"},
        "spec": {"tfReplicaSpecs": {key: spec for key, spec in specs.items() if spec["replicas"]}},
    }


def world(content: dict[str, Any], **run_policy: Any) -> World:
    """The job in a cluster where all its pods run."""
    if run_policy:
        content["spec"]["runPolicy"] = {**content["spec"].get("runPolicy", {}), **run_policy}
    made = World(parse(content).job)
    run_all(made)
    return made


def run_all(made: World) -> None:
    made.settle()
    for pod in list(made.pods.values()):
        made.run(pod)
    made.settle()


def end(made: World, **codes: int) -> None:
    """Ends pods at the same moment: ``worker_1=0``."""
    for name, code in codes.items():
        pod = made.pod(name.replace("_", "-"))
        made.end(pod, code)


def conditions(made: World) -> dict[str, dict[str, Any]]:
    """The operator's conditions by type."""
    return {one["type"]: one for one in made.status["conditions"] if one["type"] not in ("Admitted", "SpecAccepted")}


def true_conditions(made: World) -> set[str]:
    return {type_ for type_, one in conditions(made).items() if one["status"] == "True"}


def events(made: World) -> list[tuple[str, str, str]]:
    """Runs passes until nothing is left to do, and returns their events."""
    found: list[tuple[str, str, str]] = []
    while True:
        plan = made.look()
        found += [(one.type, one.reason, one.message) for one in plan.actions if isinstance(one, EmitEvent)]
        if not made.step():
            return found
        for pod in [pod for pod in made.pods.values() if "deletionTimestamp" in pod["metadata"]]:
            made.remove(pod)

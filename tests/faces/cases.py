"""Cases: jobs, the options of their runs, and their outcomes. All interfaces run this list (``test_faces``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final

from tf_dist.cluster.api import PODS, TFJOBS, Cluster, Object
from tf_dist.core.model import names

CASE: Final = "case"
"""The label of a case's job, because interfaces name jobs differently."""

FOLDER: Final = "@FOLDER@"
"""A placeholder in documents for the test's folder."""

FOREVER: Final = "trap 'exit 143' TERM; while :; do sleep 0.05; done"
TRACEBACK: Final = 'Traceback (most recent call last):\\n  File "a.py", line 1, in f\\nValueError: odd shape\\n'
COMMAND, PYTHON, WORKER, TRIGGERER, STEP = "command", "Python", "Airflow worker", "Airflow triggerer", "Argo step"
FACES: Final = (COMMAND, PYTHON, WORKER, TRIGGERER, STEP)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job, and the outcome of its run in all interfaces."""

    document: Object
    """The document that a user writes."""
    beside: Sequence[Object] = ()
    """The job's companions in the same file."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the run, by field of ``RunOptions``."""
    meanwhile: Callable[[Cluster, Object], None] | None = None
    """An action of another client when the job runs."""
    ends: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the outcome. ``reason`` and ``message`` are also the same in all interfaces."""
    refused: Sequence[str] = ()
    """Parts of the error of a job that is rejected. Empty if the job is created."""
    faces: Sequence[str] = FACES
    """The interfaces that have these options."""


def worker(script: str, replicas: int = 1, restart: str = "Never", **pod: Any) -> Object:
    """Workers that run a shell script."""
    container = {"name": "tensorflow", "image": "none", "command": ["sh", "-c", script]}
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container], **pod}
    return {"replicas": replicas, "restartPolicy": restart, "template": {"spec": spec}}


def tfjob(roles: Mapping[str, Object] | str, annotations: Mapping[str, str] | None = None, **spec: Any) -> Object:
    """A TFJob with these roles, or with one worker that runs a script."""
    roles = {"Worker": worker(roles)} if isinstance(roles, str) else roles
    metadata = {"name": "job", **({"annotations": dict(annotations)} if annotations else {})}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": metadata,
        "spec": {"tfReplicaSpecs": dict(roles), **spec},
    }


def changed(document: Object, path: Sequence[str | int], value: Any) -> Object:
    """A copy of the document with another value at the path."""
    document = deepcopy(document)
    parent: Any = document
    for name in path[:-1]:
        parent = parent[name]
    parent[path[-1]] = value
    return document


def delete(cluster: Cluster, job: Object) -> None:
    """Delete the job."""
    cluster.delete(TFJOBS, job["metadata"]["namespace"], job["metadata"]["name"])


def evict(cluster: Cluster, job: Object) -> None:
    """Delete the job's pods, like a node drain."""
    namespace, owner = job["metadata"]["namespace"], job["metadata"]["uid"]
    for pod in cluster.list(PODS, namespace).items:
        if any(one["uid"] == owner for one in pod["metadata"].get("ownerReferences", ())):
            cluster.delete(PODS, namespace, pod["metadata"]["name"])


ONCE: Final = worker("echo loss=0.5", restartPolicy="Never")["template"]
VOLCANO: Final[Object] = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "metadata": {"name": "job"},
    "spec": {
        "minAvailable": 1,
        "plugins": {"svc": [], "env": []},
        "tasks": [{"name": "worker", "replicas": 1, "template": ONCE}],
    },
}
OLD: Final[Object] = {
    "apiVersion": "kubeflow.org/v1alpha1",
    "kind": "TFJob",
    "metadata": {"name": "job"},
    "spec": {"replicaSpecs": [{"replicas": 1, "tfReplicaType": "MASTER", "template": ONCE}]},
}
CONTAINER: Final = ("spec", "tfReplicaSpecs", "Worker", "template", "spec", "containers", 0)
HUGE: Final = changed(tfjob("true"), [*CONTAINER, "resources"], {"limits": {"nvidia.com/gpu": 64}})
SUCCEEDED: Final = {"kind": "succeeded", "exit_code": None, "replica": ""}
FAILED: Final = {"kind": "failed", "replica": "worker-0"}

CASES: Final[Mapping[str, Case]] = {
    # Success
    "succeeds": Case(
        document=tfjob("true"),
        ends={**SUCCEEDED, "restarts": 0, "disruptions": 0, "metrics": {}, "gpu_seconds": 0, "lost_gpu_seconds": 0},
    ),
    "metrics": Case(
        document=tfjob("echo step=1 loss=0.9; echo step=2 loss=0.25 val/acc=1e-3"),
        ends={**SUCCEEDED, "metrics": {"step": 2.0, "loss": 0.25, "val/acc": 0.001}},
    ),
    "metrics-nan": Case(document=tfjob("echo loss=nan"), ends={**SUCCEEDED, "metrics": {"loss": "nan"}}),
    "checkpoint": Case(
        document=tfjob("echo checkpoint=/m/1; echo checkpoint=/m/2"), ends={**SUCCEEDED, "checkpoint": "/m/2"}
    ),
    "chatty": Case(
        document=tfjob("seq -f 'step=%.0f loss=0.5' 1 20000"),
        ends={**SUCCEEDED, "metrics": {"step": 20000.0, "loss": 0.5}},
    ),
    "odd-lines": Case(
        document=tfjob("printf '\\033[31mred\\033[0m \\377\\376 loss=0.5\\r\\nno end'"),
        ends={**SUCCEEDED, "metrics": {"loss": 0.5}},
    ),
    "two-workers": Case(
        document=tfjob({"Worker": worker("echo index=$HOSTNAME; echo loss=0.5", 2)}, successPolicy="AllWorkers"),
        ends={**SUCCEEDED, "metrics": {"loss": 0.5}},
    ),
    "chief-decides": Case(
        document=tfjob({"Chief": worker("echo loss=1.5"), "PS": worker(FOREVER), "Worker": worker(FOREVER)}),
        ends={**SUCCEEDED, "metrics": {"loss": 1.5}},
    ),
    "volcano": Case(document=VOLCANO, ends={**SUCCEEDED, "metrics": {"loss": 0.5}}),
    "v1alpha1": Case(document=OLD, ends={**SUCCEEDED, "metrics": {"loss": 0.5}}),
    "generate-name": Case(document={**tfjob("true"), "metadata": {"generateName": "job-"}}, ends=SUCCEEDED),
    "config-map": Case(
        document=tfjob(
            {
                "Worker": worker(
                    "cat /etc/given/text",
                    volumes=[{"name": "given", "configMap": {"name": "given"}}],
                    containers=[
                        {
                            "name": "tensorflow",
                            "image": "none",
                            "command": ["sh", "-c", "echo loss=$LOSS"],
                            "env": [
                                {"name": "LOSS", "valueFrom": {"configMapKeyRef": {"name": "given", "key": "loss"}}}
                            ],
                        }
                    ],
                )
            }
        ),
        beside=[{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "given"}, "data": {"loss": "0.125"}}],
        ends={**SUCCEEDED, "metrics": {"loss": 0.125}},
    ),
    "dollars": Case(
        document=tfjob("""test '$(not) ${a}' = '$('not') $'{a} && echo loss=0.5"""),
        ends={**SUCCEEDED, "metrics": {"loss": 0.5}},
    ),
    "code": Case(
        document=tfjob(f'test "$PWD" = {FOLDER} && echo loss=0.5', {names.CODE: FOLDER}),
        ends={**SUCCEEDED, "metrics": {"loss": 0.5}},
    ),
    "code-missing": Case(
        document=tfjob("true", {names.CODE: f"{FOLDER}/missing"}), refused=["code:", "missing is not a folder"]
    ),
    # Restarts
    "restarted": Case(
        document=tfjob(
            {"Worker": worker(f"test -e {FOLDER}/again && exit; touch {FOLDER}/again; exit 1", restart="OnFailure")}
        ),
        ends={**SUCCEEDED, "restarts": 1},
    ),
    "restarts-used-up": Case(
        document=tfjob({"Worker": worker("exit 130", restart="ExitCode")}, runPolicy={"backoffLimit": 1}),
        ends={**FAILED, "kind": "backoff_limit_exceeded", "exit_code": 130, "restarts": 1},
    ),
    # Failure
    "fails": Case(document=tfjob("exit 3"), ends={**FAILED, "exit_code": 3, "restarts": 0}),
    "fails-with-metrics": Case(
        document=tfjob("echo loss=0.5 checkpoint=/m/1; exit 3"),
        ends={**FAILED, "exit_code": 3, "metrics": {"loss": 0.5}, "checkpoint": "/m/1"},
    ),
    "second-worker-fails": Case(
        document=tfjob({"Worker": worker("test ${HOSTNAME##*-} = 0 && sleep 60; exit 4", 2)}),
        ends={"kind": "failed", "replica": "worker-1", "exit_code": 4},
    ),
    "killed": Case(document=tfjob("kill -9 $$$$"), ends={**FAILED, "exit_code": 137}),
    "traceback": Case(document=tfjob(f"printf '{TRACEBACK}'; exit 1"), ends={**FAILED, "exit_code": 1}),
    "permanent-code": Case(
        document=tfjob({"Worker": worker("exit 2", restart="ExitCode")}), ends={**FAILED, "exit_code": 2}
    ),
    "no-program": Case(
        document=changed(tfjob("true"), [*CONTAINER, "command"], ["/no/such/program"]), ends={"kind": "failed"}
    ),
    "active-deadline": Case(
        document=tfjob(FOREVER, runPolicy={"activeDeadlineSeconds": 1}), ends={"kind": "deadline_exceeded"}
    ),
    # Actions of other clients
    "deleted": Case(document=tfjob(FOREVER), meanwhile=delete, ends={"kind": "deleted"}),
    "evicted": Case(document=tfjob(FOREVER, {names.MAX_DISRUPTIONS: "0"}), meanwhile=evict, ends={"kind": "evicted"}),
    # Limits
    "never-admitted": Case(
        document=HUGE,
        options={"admission_timeout": 5},  # by then, the reason is known even on a busy machine
        ends={"kind": "admission_timeout"},
        faces=(WORKER, TRIGGERER, STEP),
    ),
    "fallback": Case(
        document=HUGE,
        # The controller tries the fallback after this time, and has the same time again, also on a busy machine.
        options={"admission_timeout": 10, "fallback": [{"resources": {"nvidia.com/gpu": 0}}]},
        ends={**SUCCEEDED, "fallback": 1},
        faces=(COMMAND, WORKER, TRIGGERER, STEP),
    ),
    "more-workers": Case(
        document=tfjob("echo loss=0.5", successPolicy="AllWorkers"),
        options={"overrides": {"spec.tfReplicaSpecs.Worker.replicas": 2}},
        ends=SUCCEEDED,
        faces=(COMMAND, WORKER, TRIGGERER, STEP),
    ),
    # Rejected jobs
    "no-roles": Case(document=tfjob({}), refused=["spec.tfReplicaSpecs"]),
    "wrong-type": Case(
        document=changed(tfjob("true"), ["spec", "tfReplicaSpecs", "Worker", "replicas"], "many"),
        refused=["spec.tfReplicaSpecs.Worker.replicas", "many"],
    ),
    "two-problems": Case(
        document=changed(
            changed(tfjob("true"), ["spec", "tfReplicaSpecs", "Worker", "restartPolicy"], "Sometimes"),
            [*CONTAINER, "image"],
            5,
        ),
        refused=["restartPolicy", "Sometimes", "containers[0].image"],
    ),
    "no-kind": Case(document={**tfjob("true"), "kind": "TFjob"}, refused=["TFjob"]),
}

_SOME: Final = (
    *("succeeds", "metrics", "two-workers", "chief-decides", "v1alpha1", "restarts-used-up"),
    *("fails-with-metrics", "traceback", "deleted", "evicted", "fallback", "two-problems"),
)
_FILES: Final = ("code", "restarted", "config-map", "volcano")
STACK: Final = tuple(name for name in CASES if name not in _FILES) if os.environ.get("TD_ALL_CASES") else _SOME
"""The cases that also run in a complete Airflow, which needs seconds for each task. With ``TD_ALL_CASES``, all cases
except those that need a folder of the test or a volume, which that cluster does not mount."""

CONTAINERS: Final = tuple(
    name
    for name, case in CASES.items()
    if STEP in case.faces
    # Steps and replicas share no folder, and the init process of a container cannot kill itself.
    and name not in ("code", "restarted", "killed")
)
"""The cases that also run in a real Argo with containers."""

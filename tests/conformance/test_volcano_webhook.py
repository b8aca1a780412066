"""Admission and defaults of a Volcano Job: ``admit_job_test.go``, ``mutate_job_test.go`` and the rules that the CRD and
the ValidatingAdmissionPolicy took over from them (volcano-sh/volcano at ed72c7c815).

Updates are tested in ``tests/core/dialects/test_volcano_update.py``.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.dialects.documents import Doc
from tf_dist.core.dialects import defaulted, parse
from tf_dist.errors import InvalidJob

PODS = "spec.tasks[0].template.spec"


def task(name: str = "task-1", replicas: int = 1, pod: Any = None, **more: Any) -> Doc:
    container = {"name": "fake-name", "image": "busybox:1.24"}
    return {
        "name": name,
        "replicas": replicas,
        "template": {"spec": {"restartPolicy": "Never", "containers": [container], **(pod or {})}},
        **more,
    }


def job(*tasks: Doc, name: str = "simple-valid-job", **spec: Any) -> Doc:
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "test"},
        "spec": {"minAvailable": 1, "queue": "default", "tasks": list(tasks or (task(),)), **spec},
    }


def policy(action: str = "AbortJob", **when: Any) -> Doc:
    return {"action": action, **when}


def container(**more: Any) -> Doc:
    return {"containers": [{"name": "fake-name", "image": "busybox:1.24", **more}]}


POD_LEVEL = {"cpu": "4", "memory": "8Gi"}
HALF = {"cpu": "2", "memory": "4Gi"}
PRIVILEGED = {"securityContext": {"privileged": True}}
ANY = policy(event="*")
EVICTED = policy("RestartTask", event="PodEvicted")
TIERS = {"mode": "hard", "highestTierAllowed": 1, "highestTierName": "volcano.sh/hypernode"}

VALID: dict[str, Doc] = {
    # TestValidateJobCreate, those without an error.
    "simple-valid-job": job(),
    "simple-valid-job-with-policy": job(task(policies=[EVICTED])),
    "validate valid-job with pod level resources": job(
        task(
            pod={
                **container(resources={"requests": HALF, "limits": HALF}),
                "resources": {"requests": POD_LEVEL, "limits": POD_LEVEL},
            }
        ),
        policies=[EVICTED],
    ),
    "job with privileged init container": job(
        task(pod={"initContainers": [{"name": "init", "image": "busybox:1.24", **PRIVILEGED}]})
    ),
    "job with privileged container": job(task(pod=container(**PRIVILEGED))),
    "job with valid task depends on": job(task("t1", dependsOn={"name": ["t2"]}), task("t2")),
    "minAvailable is 0": job(minAvailable=0),
    "a task's minAvailable is 0": job(task(minAvailable=0)),
    "maxRetry is -1 of a task": job(task(maxRetry=-1)),
    "one event twice in one policy": job(policies=[policy(events=["PodFailed", "PodFailed"])]),
    "any event beside an exit code": job(policies=[ANY, policy("RestartJob", exitCode=3)]),
    "an event of a task that the job has, too": job(task(policies=[EVICTED]), policies=[EVICTED]),
    "a negative exit code": job(policies=[policy(exitCode=-1)]),
}

REFUSED: dict[str, tuple[Doc, str]] = {
    # TestValidateJobCreate, those with an error.
    "duplicate-task-job": (job(task("duplicated-task-1"), task("duplicated-task-1")), "spec.tasks[1].name"),
    "job-policy-duplicated": (
        job(policies=[policy(event="PodFailed"), policy("RestartJob", event="PodFailed")]),
        "spec.policies[1]",
    ),
    "Min Available illegal": (job(minAvailable=2), "spec.minAvailable"),
    "Job Plugin illegal": (job(plugins={"big_plugin": []}), "spec.plugins.big_plugin"),
    "no-task": ({**job(), "spec": {"minAvailable": 1, "queue": "default", "tasks": []}}, "spec.tasks"),
    "replica-lessThanZero": (job(task(replicas=-1)), "spec.tasks[0].replicas"),
    "job-policy-withExitCode": (job(policies=[policy(event="PodFailed", exitCode=-1)]), "spec.policies[0]"),
    "policy-noEvent-noExCode": (job(policies=[policy()]), "spec.policies[0]"),
    "invalid-policy-event": (job(policies=[policy(event="someFakeEvent")]), "spec.policies[0].event"),
    "invalid-policy-action": (job(policies=[policy("someFakeAction", event="PodEvicted")]), "spec.policies[0].action"),
    "policy-extcode-zero": (job(policies=[policy(exitCode=0)]), "spec.policies[0].exitCode"),
    "duplicate-exitcode": (job(policies=[policy(exitCode=1), policy(exitCode=1)]), "spec.policies[1].exitCode"),
    "any event and another": (job(policies=[ANY, policy("RestartJob", event="PodFailed")]), "spec.policies"),
    "invalid-mount-volume": (
        job(policies=[ANY], volumes=[{"mountPath": "", "volumeClaimName": "a"}]),
        "spec.volumes[0].mountPath",
    ),
    "duplicate-mount-volume": (
        job(volumes=[{"mountPath": "/var", "volumeClaimName": f"pvc{index}"} for index in (1, 2)]),
        "spec.volumes[1].mountPath",
    ),
    "volume without VolumeClaimName and VolumeClaim": (
        job(volumes=[{"mountPath": "/var"}]),
        "spec.volumes[0].volumeClaimName",
    ),
    "taskpolicy-withAnyandOthrEvent": (
        job(task(policies=[ANY, policy("RestartJob", event="PodFailed")])),
        "spec.tasks[0].policies",
    ),
    "job with invalid task depends on": (
        job(task("t1", dependsOn={"name": ["t3"]}), task("t2")),
        "spec.tasks[0].dependsOn.name",
    ),
    "tasks that wait for each other": (
        job(task("t1", dependsOn={"name": ["t2"]}), task("t2", dependsOn={"name": ["t1"]})),
        "spec.tasks[0].dependsOn",
    ),
    "pod level resources less than those of the containers": (
        job(task(pod={**container(resources={"requests": POD_LEVEL}), "resources": {"requests": {"cpu": "2"}}})),
        f"{PODS}.resources.requests.cpu",
    ),
    "pod level resource requests greater than limits": (
        job(task(pod={"resources": {"requests": {"cpu": "6"}, "limits": {"cpu": "4"}}})),
        f"{PODS}.resources.requests.cpu",
    ),
    # Refused since then by the CRD and the admission policy.
    "minAvailable < 0": (job(minAvailable=-1), "spec.minAvailable"),
    "maxRetry < 0": (job(maxRetry=-1), "spec.maxRetry"),
    "ttlSecondsAfterFinished < 0": (job(ttlSecondsAfterFinished=-1), "spec.ttlSecondsAfterFinished"),
    "minSuccess < 1": (job(minSuccess=0), "spec.minSuccess"),
    "a task's minAvailable < 0": (job(task(minAvailable=-1)), "spec.tasks[0].minAvailable"),
    "a task's minAvailable > replicas": (job(task(minAvailable=2)), "spec.tasks[0].minAvailable"),
    "a task's name is not a label": (job(task("Task_1")), "spec.tasks[0].name"),
    "an internal event": (job(policies=[policy(event="OutOfSync")]), "spec.policies[0].event"),
    "an internal action": (job(policies=[policy("SyncJob", event="PodFailed")]), "spec.policies[0].action"),
    "both tiers": (job(networkTopology=TIERS), "spec.networkTopology"),
    "a mode that is none": (job(networkTopology={"mode": "harder"}), "spec.networkTopology.mode"),
    # Deliberate: valid in Volcano, and not supported here.
    "task-with-valid-PartitionPolicy": (
        job(task(replicas=8, partitionPolicy={"totalPartitions": 2, "partitionSize": 4})),
        "spec.tasks[0].partitionPolicy",
    ),
    "job-with-mpi-plugin-valid-master": (job(plugins={"mpi": ["--master=task-1"]}), "spec.plugins.mpi"),
}


@pytest.mark.parametrize("name", VALID)
def test_accepts_jobs_that_the_webhook_accepts(name: str) -> None:
    parse(VALID[name])


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_jobs_that_the_webhook_refuses(name: str) -> None:
    document, path = REFUSED[name]
    with pytest.raises(InvalidJob) as caught:
        parse(document)
    assert [problem.path for problem in caught.value.problems] == [path]


def test_defaults_of_tasks() -> None:
    """mutate_job_test.go, TestCreatePatchExecution: names, attempts and minimums."""
    tasks = [task("", 1), task("", 2, minAvailable=1), task("", 3)]
    for one in tasks:
        del one["name"]
    spec = defaulted(job(*tasks))["spec"]
    found = [(one["name"], one["maxRetry"], one["minAvailable"]) for one in spec["tasks"]]
    assert found == [("default0", 3, 1), ("default1", 3, 1), ("default2", 3, 3)]


@pytest.mark.parametrize(
    ("spec", "key", "expected"),
    [
        # patchDefaultQueue, patchDefaultMaxRetry, patchDefaultMinAvailable, patchDefaultPlugins
        ({"queue": ""}, "queue", "default"),
        ({"queue": "q1"}, "queue", "q1"),
        ({}, "maxRetry", 3),
        ({"maxRetry": 0}, "maxRetry", 3),
        ({"maxRetry": 5}, "maxRetry", 5),
        ({"minAvailable": 0}, "minAvailable", 3),
        ({"minAvailable": 2}, "minAvailable", 2),
        ({"plugins": {"tensorflow": []}}, "plugins", {"tensorflow": [], "svc": []}),
        ({"plugins": {"tensorflow": [], "svc": ["--x"]}}, "plugins", {"tensorflow": [], "svc": ["--x"]}),
    ],
)
def test_defaults_of_job(spec: Doc, key: str, expected: Any) -> None:
    content = job(task("a", 2), task("b", 3, minAvailable=1), **spec)
    assert defaulted(content)["spec"][key] == expected

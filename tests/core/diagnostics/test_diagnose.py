"""Diagnoses of waiting and failed jobs, with advice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import ON_FAILURE, START, ended, pod, replicas, running, v1_job, views, volcano_job
from tf_dist.core.diagnostics.diagnose import Diagnosis, diagnose, diagnose_logs
from tf_dist.core.model.job import Dependency
from tf_dist.core.model.reasons import Category, Level
from tf_dist.core.model.status import Admission, Attempts, Failure, Phase, RestartBackoff, Status
from tf_dist.core.model.timestamps import format_time

ADMITTED = Admission(START)


def first(status: Status, *pods: Any, job: Any = None) -> Diagnosis:
    return diagnose(job or v1_job(), status, views(*pods), START)[0]


def live(**fields: Any) -> Status:
    return Status(phase=Phase.RUNNING, admission=ADMITTED, **fields)


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_has_a_diagnosis(phase: Phase) -> None:
    assert first(Status(phase=phase, reason="Whatever", message="something happened")).summary


@pytest.mark.parametrize(
    ("code", "reason", "message", "category", "advice"),
    [
        (137, "OOMKilled", "", Category.MEMORY, "limits.memory"),
        (137, "Error", "", Category.FAILURE, "often by the kernel"),
        (127, "StartError", "not found", Category.COMMAND, "command, args and workingDir"),
        (128, "StartError", 'exec: "/bin/sh": stat /bin/sh: no such file', Category.COMMAND, "image has no /bin/sh"),
        (1, "Error", "ModuleNotFoundError: No module named 'numpy'", Category.COMMAND, "install it"),
        (1, "Error", "tf-dist: package a was not installed, see the lines before", Category.CONFIGURATION, "PIP_INDEX"),
        (139, "Error", "", Category.FAILURE, "native code"),
        (143, "Error", "", Category.EVICTION, "who deleted the pod"),
        (3, "Error", "", Category.FAILURE, "its log is empty"),
        (134, "Error", "", Category.FAILURE, "SIGABRT"),
    ],
)
def test_exit_of_replica_has_advice(code: int, reason: str, message: str, category: Category, advice: str) -> None:
    job = v1_job()
    found = first(live(), pod(job, "worker-0", ended(code, reason, message)))
    assert (found.level, found.category, found.detail) == (Level.ERROR, category, message)
    assert advice in found.resolution
    failure = Failure(event="PodFailed", replica="worker-0", code=code, reason=reason, message=message)
    over = first(Status(phase=Phase.FAILED, reason="PodFailed", message="it failed", failure=failure))
    assert (over.category, over.resolution) == (found.category, found.resolution)


def test_pod_that_never_ran_is_described_once() -> None:
    status = {"phase": "Failed", "reason": "ErrImageNeverPull", "message": "not there"}
    found = first(live(), pod(v1_job(), "worker-0", status))
    assert (found.summary, found.detail) == ("worker-0 cannot start: ErrImageNeverPull: not there", "")


@pytest.mark.parametrize(
    ("reason", "category"),
    [
        ("DeadlineExceeded", Category.DEADLINE),
        ("BackoffLimitExceeded", Category.BUDGET),
        ("NodeLost", Category.EVICTION),
        ("PodEvicted", Category.EVICTION),
        ("Preempted", Category.PREEMPTED),
        ("MaxDisruptionsExceeded", Category.EVICTION),
        ("StartTimeout", Category.DEADLINE),
        ("PodsRejected", Category.REFUSED),
    ],
)
def test_category_of_ended_job(reason: str, category: Category) -> None:
    assert first(Status(phase=Phase.FAILED, reason=reason, message="over")).category is category


def test_replicas_that_wait_for_capacity_are_counted() -> None:
    job = volcano_job(replicas("worker", 4, rules=(), min_available=4), min_available=2)
    status = Status(phase=Phase.RUNNING, admission=Admission(START, started={"worker": 2}))
    pods = [pod(job, f"worker-{index}", running()) for index in range(2)]
    found = diagnose(job, status, views(*pods), START)[0]
    assert found.summary == "2 of 4 replicas are running; 2 more wait for capacity"
    assert "as capacity becomes free" in found.resolution
    scaled = replace(job, replica_specs=(replicas("worker", 6, rules=(), min_available=6),))
    status = replace(status, admission=Admission(START, sizes={"worker": 2}))
    found = diagnose(scaled, status, views(*pods), START)[0]
    assert found.summary == "2 of 2 replicas are running; 2 worker instead of 6 until there is capacity for more"
    assert "as capacity becomes free" in found.resolution
    whole = diagnose(job, live(), views(*(pod(job, f"worker-{i}", running()) for i in range(4))), START)[0]
    assert (whole.summary, whole.resolution) == ("4 of 4 replicas are running", "")


def test_job_aborted_by_policy_can_be_resumed() -> None:
    failure = Failure(event="PodFailed", replica="worker-0", code=3, reason="Error")
    for phase, resumes in ((Phase.ABORTED, True), (Phase.FAILED, False)):
        found = first(Status(phase=phase, reason="PodFailed", message="worker-0 exited with code 3", failure=failure))
        assert ("tf-dist resume" in found.resolution) is resumes
        assert "its log is empty" in found.resolution


def test_suspended_job_has_not_failed() -> None:
    found = first(Status(phase=Phase.ABORTED, reason="Suspended", message="suspended by the user"))
    assert (found.level, found.category) == (Level.INFO, Category.SUSPENDED)
    assert "tf-dist resume" in found.resolution


def test_categories_are_stable() -> None:
    assert [category.value for category in Category] == [
        "waits-for-admission",
        "never-fits",
        "quota-exceeded",
        "queue-not-found",
        "gang-scheduler-missing",
        "capacity-is-reserved",
        "preempted",
        "not-scheduled-in-time",
        "unschedulable",
        "refused",
        "image",
        "configuration",
        "waits-to-restart",
        "waits-for-old-pods",
        "waits-for-dependency",
        "starting",
        "failure",
        "command",
        "out-of-memory",
        "eviction",
        "node-lost",
        "deadline",
        "restart-budget",
        "invalid-spec",
        "newer-status-format",
        "suspended",
        "running",
        "succeeded",
        "no-leader",
        "managed-elsewhere",
        "deleting",
    ]


@pytest.mark.parametrize(
    ("reason", "category", "advice"),
    [
        ("ImagePullBackOff", Category.IMAGE, "name and tag"),
        ("ErrImageEntrypoint", Category.IMAGE, "--entrypoint"),
        ("CreateContainerConfigError", Category.CONFIGURATION, "config maps"),
        ("CrashLoopBackOff", Category.FAILURE, "previous attempt"),
    ],
)
def test_diagnosis_of_waiting_container(reason: str, category: Category, advice: str) -> None:
    waiting = {"name": "tensorflow", "state": {"waiting": {"reason": reason, "message": "because"}}, "restartCount": 0}
    found = first(live(), pod(v1_job(), "worker-0", {"phase": "Pending", "containerStatuses": [waiting]}))
    assert (found.category, found.detail) == (category, "because")
    assert advice in found.resolution


def test_image_that_cannot_be_pulled_is_reported_with_the_node() -> None:
    waiting = {"name": "tensorflow", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    status = {"phase": "Pending", "containerStatuses": [{**waiting, "restartCount": 0}]}
    body = pod(v1_job(), "worker-0", status)
    body["spec"]["nodeName"] = "n2"
    assert first(live(), body).detail == "on node n2: no such image"


def test_unschedulable_pod_has_message_of_scheduler() -> None:
    conditions = [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}]
    found = first(live(), pod(v1_job(), "worker-0", {"phase": "Pending", "conditions": conditions}))
    assert (found.category, found.detail) == (Category.UNSCHEDULABLE, "0/3 nodes are available")


@pytest.mark.parametrize("reason", ["", "ContainerCreating", "PodInitializing"])
def test_pod_with_waiting_containers_is_starting(reason: str) -> None:
    waiting = {"name": "tensorflow", "restartCount": 0, "state": {"waiting": {"reason": reason}}}
    job = v1_job(replicas("Worker", 1))
    starts = pod(job, "worker-0", {"phase": "Pending", "containerStatuses": [waiting]})
    starts["spec"]["nodeName"] = "n1"
    (found,) = diagnose(job, live(), views(starts), START + 60)
    assert (found.level, found.category) == (Level.INFO, Category.STARTING)
    assert found.summary == "worker-0 is starting on n1"


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        (
            'MountVolume.SetUp failed for volume "c" : configmap "settings" not found',
            "create the ConfigMap settings in",
        ),
        ('MountVolume.SetUp failed for volume "s" : secret "keys" not found', "create the Secret keys in"),
        ('MountVolume.SetUp failed for volume "s" : references non-existent secret key: a.pem', "add the key a.pem to"),
        ('Multi-Attach error for volume "pvc-1" Volume is already exclusively attached to one node', "ReadWriteMany"),
        (
            "Unable to attach or mount volumes: unmounted volumes=[data]: timed out",
            "kubectl describe pod mnist-worker-0",
        ),
    ],
)
def test_pod_that_waits_for_volume_names_missing_object(message: str, advice: str) -> None:
    creating = {"name": "tensorflow", "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}
    job = v1_job(replicas("Worker", 1))
    waits = pod(job, "worker-0", {"phase": "Pending", "containerStatuses": [creating]})
    waits["spec"]["nodeName"] = "n1"
    said = {waits["metadata"]["name"]: message}
    (found,) = diagnose(job, live(), views(waits), START + 60, volumes=said)
    assert (found.level, found.category, found.detail) == (Level.WARNING, Category.CONFIGURATION, message)
    assert found.summary == "worker-0 waits for a volume"
    assert advice in found.resolution
    (early,) = diagnose(job, live(), views(waits), START + 1, volumes=said)  # it may be created with the job
    assert early.category is Category.STARTING
    # The kubelet of this machine reports it in the pod's status.
    creating["state"]["waiting"]["message"] = message
    assert diagnose(job, live(), views(waits), START + 60) == (found,)


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ('configmap "settings" not found', "create the ConfigMap settings in"),
        ('secret "keys" not found', "create the Secret keys in"),
        ("couldn't find key rate in ConfigMap default/settings", "add the key rate to the ConfigMap settings"),
        ("couldn't find key token in Secret default/keys", "add the key token to the Secret keys"),
        ('container has runAsNonRoot and image will run as root (pod: "a", container: b)', "runAsUser: 1000"),
        ("container has runAsNonRoot and image has non-numeric user (me), cannot verify user", "runAsUser: 1000"),
    ],
)
def test_container_config_error_names_missing_object(message: str, advice: str) -> None:
    reason = {"reason": "CreateContainerConfigError", "message": message}
    waiting = {"name": "tensorflow", "restartCount": 0, "state": {"waiting": reason}}
    job = v1_job()
    found = first(live(), pod(job, "worker-0", {"phase": "Pending", "containerStatuses": [waiting]}))
    assert found.detail == message
    assert advice in found.resolution


def test_job_that_never_fits_is_error_and_waiting_job_is_not() -> None:
    waits = first(Status(reason="WaitingForCapacity", message="needs 2 × (cpu 4) for worker"))
    assert (waits.level, waits.category, waits.summary) == (
        Level.INFO,
        Category.ADMISSION,
        "needs 2 × (cpu 4) for worker",
    )
    never = first(Status(reason="NeverFits", message="needs 64 GPUs"))
    assert (never.level, never.category) == (Level.ERROR, Category.NEVER_FITS)
    assert "ResourceQuota" not in never.resolution
    quota = first(Status(reason="NeverFits", message="ResourceQuota compute allows 4 GPUs, it needs 64"))
    assert quota.resolution == "ask for less or for fewer replicas, or have the ResourceQuota raised"


def test_pods_refused_by_restricted_namespace_have_advice() -> None:
    rule = 'pods "mnist-worker-0" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true'
    found = first(Status(reason="PodsRejected", message=f"the cluster refuses pods of the gang: {rule}"))
    assert found.category is Category.REFUSED
    assert "runAsUser: 1000" in found.resolution
    stalled = Status(phase=Phase.PENDING, admission=ADMITTED, last_error=rule)
    assert "runAsUser: 1000" in first(stalled).resolution
    other = first(Status(reason="PodsRejected", message="the cluster refuses pods of the gang: no label team"))
    assert "correct the job" in other.resolution


@pytest.mark.parametrize(
    ("reason", "level", "category", "advice"),
    [
        ("QuotaExceeded", Level.INFO, Category.QUOTA, "tf-dist queues"),
        ("PriorityClassRefused", Level.ERROR, Category.QUEUE, "priority class that the queue accepts"),
        ("NamespaceMismatch", Level.ERROR, Category.QUEUE, "open to this namespace"),
        ("QueueNotFound", Level.ERROR, Category.QUEUE, "tf-dist queues"),
        ("Reserved", Level.INFO, Category.RESERVED, "a short job may start"),
        ("Backoff", Level.WARNING, Category.SCHEDULE_TIMEOUT, "scheduler reports"),
        ("ScheduleTimeout", Level.WARNING, Category.SCHEDULE_TIMEOUT, "scheduleTimeoutSeconds"),
        ("Preempted", Level.WARNING, Category.PREEMPTED, "priority class"),
        ("Preempting", Level.INFO, Category.ADMISSION, "preempted jobs are deleted"),
        ("WaitingInQueue", Level.INFO, Category.ADMISSION, "the whole gang is free"),
        ("Unreadable", Level.ERROR, Category.INVALID, "nodeSelector"),
    ],
)
def test_diagnosis_of_gang_without_admission(reason: str, level: Level, category: Category, advice: str) -> None:
    found = first(Status(reason=reason, message="so it is"))
    assert (found.level, found.category, found.summary) == (level, category, "so it is")
    assert advice in found.resolution


def test_stopping_pods_of_previous_attempt_are_named() -> None:
    job = v1_job()
    status = live(attempts=Attempts(2))
    found = first(status, pod(job, "worker-0", running()))
    assert found.category is Category.STOPPING
    assert "mnist-worker-0" in found.summary


def test_backoff_says_time_until_restart() -> None:
    job = v1_job(replicas("Worker", 1, rules=ON_FAILURE))
    found = first(live(backoffs={"worker-0": RestartBackoff(2, START + 10)}), job=job)
    assert (found.category, found.summary) == (Category.BACKOFF, "worker-0 is restarted in 10 s")


def test_dependency_that_is_not_up_is_named() -> None:
    job = v1_job(replicas("PS", 1), replicas("Worker", 1, depends=Dependency(on=("ps",))))
    found = first(live(), pod(job, "ps-0"), job=job)
    summaries = [one.summary for one in diagnose(job, live(), views(pod(job, "ps-0")), START)]
    assert found.category is Category.STARTING
    assert "worker-0 waits until ps is up (dependsOn)" in summaries


def test_diagnosis_of_running_job() -> None:
    job = v1_job(replicas("Worker", 1))
    found = first(live(), pod(job, "worker-0", running()), job=job)
    assert (found.level, found.summary) == (Level.INFO, "1 of 1 replica is running")


@pytest.mark.parametrize(("count", "often"), [(1, "once"), (2, "2 times")])
def test_counts_disruptions_of_pods(count: int, often: str) -> None:
    status = live(disruptions={"EvictionByEvictionAPI": count})
    found = diagnose(v1_job(), status, (), START)
    assert any(f"taken away {often} (" in one.summary for one in found), found


@pytest.mark.parametrize(
    ("conditions", "gates", "said"),
    [
        (
            {"Ready": "False", "ContainersReady": "True"},
            [],
            "worker-0 is on node n, which is not ready: it may still run",
        ),
        ({"Ready": "True", "ContainersReady": "True"}, [], "1 of 1 replica is running"),
        ({"Ready": "False", "ContainersReady": "False"}, [], "1 of 1 replica is running"),
        ({"Ready": "False", "ContainersReady": "True"}, [{"conditionType": "x"}], "1 of 1 replica is running"),
    ],
)
def test_unready_node_of_running_pod_is_named(
    conditions: dict[str, str], gates: list[dict[str, str]], said: str
) -> None:
    job = v1_job(replicas("Worker", 1))
    one = pod(job, "worker-0", running())
    one["spec"] |= {"nodeName": "n", "readinessGates": gates}
    one["status"]["conditions"] = [{"type": type_, "status": status} for type_, status in conditions.items()]
    assert first(live(), one, job=job).summary == said


@pytest.mark.parametrize(
    ("age", "scheduler", "conditions", "said"),
    [
        (30, "volcano", [], "no scheduler has looked at worker-0 yet: its schedulerName is volcano"),
        (29, "volcano", [], "worker-0 is starting"),
        (30, "default-scheduler", [{"type": "PodScheduled", "status": "True"}], "worker-0 is starting"),
    ],
)
def test_pod_without_scheduler_is_reported_after_30_seconds(
    age: int, scheduler: str, conditions: list[Any], said: str
) -> None:
    job = v1_job()
    found = pod(job, "worker-0")
    found["metadata"]["creationTimestamp"] = format_time(START)
    found["spec"] = {"schedulerName": scheduler}
    found["status"] = {"phase": "Pending", "conditions": conditions}
    one = diagnose(job, live(), views(found), START + age)[0]
    assert one.summary == said
    assert ("schedulerName" in one.resolution) == ("no scheduler" in said)


KERAS_3 = (
    "ValueError: To use this dataset, you need to pass this dataset to ClusterCoordinator.create_per_worker_dataset."
)


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("}) with an unsupported type (<class 'tensorflow.distribute.values.PerReplica'>) to a Tensor.", "tf_keras"),
        (KERAS_3, "TF_USE_LEGACY_KERAS=1"),
        ("AttributeError: `dense` is not available with Keras 3.", "TF_USE_LEGACY_KERAS=1"),
        ("ModuleNotFoundError: No module named 'tf_keras'", "pip install tf_keras"),
        ("socket.gaierror: [Errno -3] Temporary failure in name resolution", "slirp4netns"),
        ("/usr/bin/env: \u2018python\\r\u2019: No such file or directory", "Windows line ends"),
        ("./train.sh: line 2: $'\\r': command not found", "Windows line ends"),
        ("EOFError: EOF when reading a line", "replicas have no input"),
        ("tensorboard: TensorBoard is not installed, missing implementation", "pip install tensorboard"),
    ],
)
def test_known_line_of_failed_program_has_advice(line: str, advice: str) -> None:
    found = first(live(), pod(v1_job(), "worker-0", ended(1, "Error", line)))
    assert advice in found.resolution


_HANDLED = """\
Traceback (most recent call last):
  File "/app/train.py", line 3, in <module>
    import horovod
ModuleNotFoundError: No module named 'horovod'
"""
_CUINIT = "cuda_driver.cc:282] failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected\n"


@pytest.mark.parametrize(
    ("code", "reason", "log", "advice"),
    [
        # TensorFlow writes these lines on every machine without a GPU.
        (2, "Error", f"2026-11-27 10:00:00.123456: E external/{_CUINIT}train.py: error: --steps is not a number", ""),
        (2, "Error", f"E0000 00:00:1795799021.567839 2 {_CUINIT}train.py: error: --steps is not a number", ""),
        (1, "Error", "WARNING:root:ModuleNotFoundError: No module named 'horovod'\n/data is empty", ""),
        (1, "Error", "2026-11-27 10:00:00,123 - x - WARNING - ModuleNotFoundError: horovod\n/data is empty", ""),
        (1, "Error", "Temporary failure in name resolution, trying again\n/data is empty", ""),
        (1, "Error", f"{_HANDLED}step=1\n{_HANDLED.replace('ModuleNotFoundError', 'KeyError')}", ""),
        (137, "OOMKilled", _HANDLED, "raise resources.limits.memory of the container, or use a smaller batch"),
        (137, "Error", _HANDLED, "it was killed with SIGKILL, often by the kernel because of its memory"),
        (139, "Error", _CUINIT, "it crashed in native code: try another TensorFlow build, or look for a core dump"),
    ],
)
def test_handled_error_in_log_is_not_the_reason(code: int, reason: str, log: str, advice: str) -> None:
    found = first(live(), pod(v1_job(), "worker-0", ended(code, reason, log)))
    assert found.resolution == advice


@pytest.mark.parametrize(
    "between", ["During handling of the above exception", "The above exception was the direct cause"]
)
def test_reason_may_be_an_exception_of_the_chain(between: str) -> None:
    chained = f"{_HANDLED}\n{between}\n\n{_HANDLED.replace('ModuleNotFoundError', 'ImportError')}"
    found = first(live(), pod(v1_job(), "worker-0", ended(1, "Error", chained)))
    assert found.resolution.startswith("install it where the container runs")


def test_exception_is_first_line_of_evidence() -> None:
    log = 'step=1\nTraceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: no'
    failed = pod(v1_job(), "worker-0", ended(1, "Error", log))
    found = first(live(), failed)
    assert found.detail.splitlines()[:2] == ["ValueError: no", '  File "train.py", line 3, in <module>']
    assert found.resolution == ""


def test_longer_log_read_by_client_is_evidence() -> None:
    job = v1_job()
    failed = views(pod(job, "worker-0", ended(1, "Error", "the end of a tensor]]")))
    found = diagnose(job, live(), failed, START, {"worker-0": ["KeyError: 'x'"]})[0]
    assert found.detail == "KeyError: 'x'"


@pytest.mark.parametrize(
    ("gpus", "line", "told"),
    [
        (1, "Could not find cuda drivers on your machine, GPU will not be used.", "requests a GPU, but TensorFlow"),
        (0, "Could not find cuda drivers on your machine, GPU will not be used.", ""),
        (0, "failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected", "requests none"),
        (0, "TensorBoard is not installed, missing implementation for `tf.summary.scalar`", "TensorBoard"),
        (0, "Temporary failure in name resolution", "cannot reach"),
        (0, "OSError: [Errno 101] Network is unreachable", "cannot reach"),
        (0, "a line like any other", ""),
    ],
)
def test_known_line_of_running_program_is_warned_of_once(gpus: int, line: str, told: str) -> None:
    container = {"name": "tensorflow", "image": "i", "resources": {"limits": {"nvidia.com/gpu": gpus} if gpus else {}}}
    job = v1_job(replace(replicas("Worker", 2), template={"spec": {"containers": [container]}}))
    found = [*diagnose_logs(job, {"worker-0": [line], "worker-1": [line]})]
    assert [one.level for one in found] == ([Level.WARNING] if told else [])
    assert all(told in one.summary and one.summary.startswith("worker-0 ") for one in found)


def test_parameter_server_without_gpu_is_not_warned_of() -> None:
    container = {"name": "tensorflow", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    job = v1_job(replace(replicas("Worker", 1), template={"spec": {"containers": [container]}}), replicas("PS", 1))
    line = "failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"
    assert [*diagnose_logs(job, {"ps-0": [line]})] == []

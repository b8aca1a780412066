"""The stored form of a job's memory: a controller reads what it wrote itself.

After the first release, a change of the form (a new field, another key, another meaning) raises ``VERSION`` in
``core.model.status_codec``. ``TF_DIST_REGENERATE=1 pytest`` this file writes the golden file.

Readers of stored objects raise only documented errors for any content.

The documents are valid ones in which arbitrary values are replaced. Bombs are short inputs that could take far more
time or memory than their length suggests.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import pickle
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.builders import START
from tests.core.gang.stored import ADMITTED, admitter_of, job, verdicts
from tests.core.malformed import ANYTHING, BOMBS, bombs_at, disfigured, places, put
from tests.thorough import thorough
from tf_dist.cluster.client.indexer import parse_resource_version
from tf_dist.cluster.lease import LeaseObservation, LeaseRecord, acquired_lease
from tf_dist.controller.informers import transforms
from tf_dist.core.dialects import read
from tf_dist.core.dialects.queue_resource import read_queue
from tf_dist.core.gang.resources.admission_config import admission_config
from tf_dist.core.gang.types import AdmissionRequest
from tf_dist.core.model import names
from tf_dist.core.model.job import ReplicaId
from tf_dist.core.model.pods import pod_view
from tf_dist.core.model.quantity import parse_quantity
from tf_dist.core.model.status import (
    AcceptedSpec,
    Admission,
    Attempts,
    Counts,
    Failure,
    Phase,
    RefusedSpec,
    RestartBackoff,
    Status,
    StoredDocument,
)
from tf_dist.core.model.status_codec import (
    MEMORY_CONDITION,
    MEMORY_RESOURCE,
    SHOWN,
    VERSION,
    InvalidStatus,
    NewerStatusFormat,
    check_version,
    displayed_status,
    dump_status,
    load_status,
    memory,
    parse_ranges,
    partial_status,
    read_status,
    stored_status,
    with_embedded_memory,
    with_restored_memory,
)
from tf_dist.core.model.timestamps import format_micro_time, format_time, parse_duration, parse_time
from tf_dist.core.model.usage import Spent, Usage
from tf_dist.errors import InvalidJob, InvalidQueue

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "status.json"
WORKER: Final = ReplicaId("worker", 1)
# Every field differs from its default: the golden file covers only fields that are set here.
FULL: Final = Status(
    phase=Phase.RUNNING,
    reason="JobRunning",
    message="2 of 3 replicas are running",
    since=1_800_000_001.5,
    created=1_800_000_000.0,
    start_time=1_800_000_002.0,
    completion_time=1_800_000_003.0,
    attempts=Attempts(job=2, tasks={"worker": 3}, pods={WORKER: 4}),
    observed_replicas=frozenset({WORKER, ReplicaId("ps", 0)}),
    succeeded=frozenset({ReplicaId("worker", 0)}),
    survivors=frozenset({ReplicaId("worker", 2)}),
    restarts={"PodFailed": 5},
    disruptions={"EvictionByEvictionAPI": 11},
    container_restarts=6,
    retries=7,
    commands=("3f0c", "9a17"),
    policy_timeouts={"PodEvicted worker-1 2.3.4": 1_800_000_012.0},
    backoffs={"worker-1": RestartBackoff(7, 1_800_000_004.0)},
    admission=Admission(
        at=1_800_000_005.0,
        placement={"worker": {"n1": 2}},
        sizes={"worker": 2, "ps": 0},
        started={"worker": 1, "ps": 0},
        resized=1_800_000_006.0,
        complete=1_800_000_007.0,
        incomplete=1_800_000_011.0,
        by="kueue",
    ),
    last_sizes={"worker": 3},
    fallback=2,
    fallback_from=1,
    requeues=8,
    not_before=1_800_000_008.0,
    refused_nodes={"n4": 1_800_000_011.0},
    counts={"worker": Counts(pending=1, running=2, ready=3, succeeded=4, failed=5, terminating=6, restarts=7)},
    failure=Failure(
        event="PodFailed",
        replica="worker-1",
        code=137,
        reason="OOMKilled",
        message="why",
        at=1_800_000_009.0,
        node="n3",
    ),
    gang="volcano",
    last_error="quota",
    accepted_spec=AcceptedSpec(
        generation=9,
        digest="abc",
        runtime_id="a1b2",
        document={"spec": {"replicaSpecs": []}, "annotations": {}, "labels": {}},
    ),
    refused_spec=RefusedSpec(generation=10, digest="def", message="spec.x: unknown key"),
    unconfirmed="mnist-worker-1 on n3",
    usage=Usage(
        since=1_800_000_013.0,
        replicas_held=3,
        gpus_held=2.0,
        waited=60.5,
        replicas=Spent(held=100.0, trained=90.0, lost=10.0),
        gpus=Spent(held=200.0, trained=180.0, lost=20.0),
        runs={"worker-1": 1_800_000_014.0},
    ),
)


def left_out(value: Any, place: str = "status") -> list[str]:
    """The fields of dataclasses in ``value`` that are empty or have their defaults."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = []
        for field in dataclasses.fields(value):
            inner, default = getattr(value, field.name), field.default
            if inner == default or inner in (None, "", 0, {}, frozenset()):
                found.append(f"{place}.{field.name}")
            found += left_out(inner, f"{place}.{field.name}")
        return found
    if isinstance(value, Mapping):
        return [one for key, inner in value.items() for one in left_out(inner, f"{place}[{key}]")]
    return []


def test_example_sets_every_field() -> None:
    assert left_out(FULL) == []


def test_stored_form_matches_golden_file() -> None:
    written = json.loads(json.dumps({"tfDist": dump_status(FULL)}))
    if os.environ.get("TF_DIST_REGENERATE"):
        GOLDEN.write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")
    assert written == json.loads(GOLDEN.read_text())
    assert load_status(written) == FULL


def test_memory_is_all_fields_except_displayed_fields() -> None:
    names = [one.name for one in dataclasses.fields(Status)]
    decides = [name for name in names if memory(FULL) != memory(dataclasses.replace(FULL, **{name: None}))]
    assert decides == names[: names.index("message")]
    assert (*decides, *SHOWN) == tuple(names)


@pytest.mark.parametrize("version", [VERSION + 1, 10**30, "2", 1.5, None, [], True])
def test_refuses_newer_or_unknown_version(version: object) -> None:
    stored = {"tfDist": {**dump_status(FULL), "version": version, "phase": "Dreaming", "message": {"new": 1}}}
    with pytest.raises(NewerStatusFormat, match="newer tf-dist"):
        check_version(stored)
    assert partial_status(stored) == Status(reason="JobRunning")


@pytest.mark.parametrize("stored", [{}, {"tfDist": {}}, {"tfDist": None}, {"tfDist": {"version": VERSION}}])
def test_accepts_current_or_missing_version(stored: Any) -> None:
    check_version(stored)


Reader = Callable[[Any], object]


# -- valid documents --

META: Final = {"name": "a", "namespace": "default", "uid": "uid-mnist", "resourceVersion": "7"}
MEMORY: Final = {
    "version": 1,
    "phase": "Running",
    "reason": "JobRunning",
    "message": "2 of 3",
    "since": "2027-01-15T08:00:00.000000Z",
    "created": "2027-01-15T08:00:00.000000Z",
    "attempts": {"job": 2, "tasks": {"worker": 1}, "pods": {"worker-0": 3}},
    "observedReplicas": {"worker": "0-1"},
    "succeeded": {"ps": "0"},
    "restarts": {"PodFailed": 2},
    "disruptions": {"NodeLost": 1},
    "backoffs": {"worker-0": {"count": 2, "until": "2027-01-15T08:00:10.000000Z"}},
    "admission": {"at": "2027-01-15T08:00:00.000000Z", "placement": {"worker": {"n": 2}}, "sizes": {"worker": 2}},
    "lastSizes": {"worker": 2},
    "counts": {"worker": {"running": 2}},
    "failure": {"event": "PodFailed", "replica": "worker-0", "code": 1, "at": "2027-01-15T08:00:00.000000Z"},
    "acceptedSpec": {"generation": 1, "digest": "x", "document": {"spec": {}}},
    "refusedSpec": {"generation": 2, "digest": "y", "message": "no"},
}
CONDITIONS: Final = [{"type": "Running", "status": "True", "reason": "r", "message": "m"}]
JOB: Final = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "TFJob",
    "metadata": META,
    "status": {"conditions": CONDITIONS, "state": {"phase": "Running"}, "tfDist": MEMORY},
}
PRUNED: Final = {
    **JOB,
    "status": {k: v for k, v in with_embedded_memory(JOB["status"], "TFJob").items() if k != "tfDist"},
}  # type: ignore[arg-type]
PRUNED_JOB: Final = {**JOB, "status": {"controlledResources": {MEMORY_RESOURCE: json.dumps(MEMORY)}, "conditions": []}}
TERMINATED: Final = {"exitCode": 137, "reason": "Error", "message": "x", "finishedAt": "2027-01-15T08:00:00Z"}
OWNED: Final = {
    **META,
    "labels": {names.JOB_UID: "uid-mnist", names.REPLICA_TYPE: "worker", names.REPLICA_INDEX: "0", names.ATTEMPT: "1"},
    "ownerReferences": [{"uid": "uid-mnist", "controller": True, "kind": "TFJob", "name": "mnist"}],
}
AMOUNTS: Final = {"cpu": "1", "memory": "1Gi"}
CONTAINER: Final = {"name": "tensorflow", "image": "x", "resources": {"requests": AMOUNTS, "limits": AMOUNTS}}
POD: Final = {
    "metadata": OWNED,
    "spec": {
        "nodeName": "n",
        "containers": [CONTAINER],
        "initContainers": [{**CONTAINER, "restartPolicy": "Always"}],
        "overhead": {"cpu": "1"},
    },
    "status": {
        "phase": "Failed",
        "reason": "Evicted",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1"}],
        "startTime": "2027-01-15T08:00:00Z",
        "containerStatuses": [
            {
                "name": "tensorflow",
                "restartCount": 2,
                "state": {"terminated": TERMINATED, "waiting": {"reason": "ImagePullBackOff", "message": "x"}},
                "lastState": {"terminated": TERMINATED},
            }
        ],
        "initContainerStatuses": [{"name": "i", "restartCount": 1}],
    },
}
NODE: Final = {
    "metadata": {"name": "n", "labels": {"zone": "a"}},
    "spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}], "unschedulable": False},
    "status": {
        "allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110"},
        "capacity": {"cpu": "8"},
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2027-01-15T08:00:00Z"}],
    },
}
QUEUE: Final = {
    "apiVersion": "tf-dist.dev/v1alpha1",
    "kind": "Queue",
    "metadata": {"name": "q"},
    "spec": {
        "parent": "p",
        "weight": 2,
        "quotas": {"cpu": {"nominal": "4", "borrowingLimit": "2", "lendingLimit": "1"}},
        "order": "StrictFIFO",
        "preemption": "Never",
        "defaultPriority": 3,
        "namespaceSelector": {
            "matchLabels": {"team": "vision"},
            "matchExpressions": [{"key": "tier", "operator": "In", "values": ["prod"]}],
        },
    },
}
CLASS: Final = {"metadata": {"name": "high"}, "value": 5, "preemptionPolicy": "Never", "globalDefault": True}
LEASE: Final = {
    "metadata": {**META, "labels": {names.LEADER: "controller"}},
    "spec": {"holderIdentity": "x", "leaseDurationSeconds": 15, "renewTime": "2027-01-15T08:00:00Z"},
}
TFJOB: Final = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "TFJob",
    "metadata": {"name": "mnist", "namespace": "default", "uid": "uid-mnist"},
    "spec": {
        "runPolicy": {
            "cleanPodPolicy": "Running",
            "backoffLimit": 3,
            "activeDeadlineSeconds": 5,
            "schedulingPolicy": {"minAvailable": 1, "queue": "q", "priorityClass": "high"},
        },
        "tfReplicaSpecs": {
            "Worker": {
                "replicas": 2,
                "restartPolicy": "ExitCode",
                "template": {
                    "metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}},
                    "spec": {
                        "containers": [
                            {**CONTAINER, "env": [{"name": "A", "value": "b"}], "ports": [{"containerPort": 1}]}
                        ],
                        "initContainers": [CONTAINER],
                        "overhead": AMOUNTS,
                        "nodeSelector": {"a": "b"},
                        "tolerations": [{"key": "a", "operator": "Exists"}],
                        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}},
                        "priorityClassName": "high",
                    },
                },
            }
        },
    },
}


def accepts(reader: Reader, value: Any, *documented: type[Exception]) -> None:
    with suppress(*documented):
        reader(value)


# -- status, Lease, queue, pod, node --


def known(stored: Mapping[str, Any]) -> Status:
    raw = stored_status(stored)
    check_version(raw)
    return load_status(raw)


def as_admission_sees(claims: list[AdmissionRequest], nodes: list[Any], pods: list[Any]) -> object:
    return verdicts(admitter_of(claims, nodes, pods), START + 1000)


def jobs_of(document: Any) -> list[AdmissionRequest]:
    return [AdmissionRequest(read(document), Status(), START), AdmissionRequest(job(), ADMITTED, START)]


READERS: Final[dict[str, tuple[Mapping[str, Any], Reader, tuple[type[Exception], ...]]]] = {
    "status": (JOB, known, (InvalidStatus, NewerStatusFormat)),
    "pruned": (PRUNED, known, (InvalidStatus, NewerStatusFormat)),
    "pruned-volcano": (PRUNED_JOB, known, (InvalidStatus, NewerStatusFormat)),
    "shown": (JOB, displayed_status, ()),
    "glimpse": (JOB, lambda stored: partial_status(with_restored_memory(stored["status"])), ()),
    "job": (TFJOB, read, (InvalidJob,)),
    "gang": (
        TFJOB,
        lambda document: as_admission_sees(jobs_of(document), [NODE], [POD]),
        (InvalidJob,),
    ),
    "queue": (QUEUE, read_queue, (InvalidQueue,)),
    "rules": (QUEUE, lambda queue: admission_config([queue], [CLASS]), ()),
    "priority-class": (CLASS, lambda one: admission_config([QUEUE], [one]), ()),
    "pod-view": (POD, lambda pod: pod_view(pod, "tensorflow"), ()),
    "pod": (POD, lambda pod: as_admission_sees(jobs_of(TFJOB), [NODE], [transforms.pod(pod)]), ()),
    "node": (NODE, lambda node: as_admission_sees(jobs_of(TFJOB), [transforms.node(node)], [POD]), ()),
    "same-room": (NODE, lambda node: transforms.same_but_version(transforms.node(node), transforms.node(NODE)), ()),
    "lease": (LEASE, LeaseRecord.of, ()),
    "lease-acquired": (LEASE, lambda lease: acquired_lease(lease, "me", 15, START), ()),
    "lease-seen": (LEASE, lambda lease: LeaseObservation().note(lease, 1.0), ()),
}


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
@thorough(150)
def test_reader_raises_only_documented_errors(name: str, data: st.DataObject) -> None:
    document, reader, documented = READERS[name]
    accepts(reader, data.draw(disfigured(document)), *documented)


@pytest.mark.thorough
@pytest.mark.parametrize("name", READERS)
def test_reader_survives_bombs_anywhere_in_document(name: str) -> None:
    document, reader, documented = READERS[name]
    paths = [path for path in places(dict(document)) if path[0] not in ("metadata", "apiVersion", "kind")]
    assert paths
    for position, path in enumerate(paths):
        for bomb in bombs_at(position):
            found = copy.deepcopy(dict(document))
            put(found, path, bomb)
            accepts(reader, found, *documented)


# -- single values --

VALUES: Final[dict[str, tuple[Reader, tuple[type[Exception], ...]]]] = {
    "time": (parse_time, ()),
    "quantity": (parse_quantity, (ValueError,)),
    "ranges": (lambda text: list(parse_ranges(str(text)[:200_000])) if isinstance(text, str) else None, (ValueError,)),
    "duration": (lambda text: parse_duration(text) if isinstance(text, str) else None, ()),
    "version": (parse_resource_version, ()),
    "memory": (lambda text: with_restored_memory({"conditions": [{"type": MEMORY_CONDITION, "message": text}]}), ()),
    "status": (with_restored_memory, ()),
}


@pytest.mark.parametrize("name", VALUES)
@given(value=ANYTHING)
@thorough(150)
def test_value_reader_raises_only_documented_errors(name: str, value: Any) -> None:
    reader, documented = VALUES[name]
    accepts(reader, value, *documented)


@pytest.mark.parametrize("name", VALUES)
def test_value_reader_survives_bombs(name: str) -> None:
    reader, documented = VALUES[name]
    for bomb in BOMBS:
        accepts(reader, bomb, *documented)


@given(st.floats())
def test_formats_any_number_of_seconds(number: float) -> None:
    assert parse_time(format_time(number)) is not None
    assert parse_time(format_micro_time(number)) is not None


@pytest.mark.parametrize("text", ["", "a", "-1", "3-1", "2,1", "1,1", "0-2,2", "0-2,1-3", "0-", "0-99999999"])
def test_refuses_ranges_that_are_not_ascending_indexes(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an index|does not come after"):
        list(parse_ranges(text))


@given(st.text(alphabet="0123456789-,", max_size=60))
def test_parsed_ranges_are_sorted_and_bounded(text: str) -> None:
    try:
        found = list(parse_ranges(text))
    except ValueError:
        return
    assert found == sorted(set(found))
    assert len(found) <= 100_000


def test_stored_status_is_parsed_once_and_copies_are_parsed_again() -> None:
    stored = StoredDocument({"metadata": {}, "status": {"tfDist": {"version": 1, "phase": "Running"}}})
    status = read_status(stored)
    assert displayed_status(stored) is read_status(stored) is status
    for copied in (copy.copy(stored), copy.deepcopy(stored), pickle.loads(pickle.dumps(stored)), {**stored}):
        assert (type(copied), copied) == (dict, stored)
        ended = {**copied, "status": {"tfDist": {"version": 1, "phase": "Completed"}}}
        assert (read_status(copied), read_status(ended).phase) == (status, Phase.COMPLETED)
        assert read_status(copied) is not status

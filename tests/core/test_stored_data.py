"""Readers of what is stored in a cluster: whatever stands there, only the error that is documented leaves them.

Documents are sound ones in which anything anywhere is exchanged for anything; bombs are short inputs that would cost
far more than they are long.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.bombs import ANYTHING, BOMBS, disfigured, places, put
from tests.core.builders import START
from tests.core.gang.stored import ADMITTED, job
from tf_dist.cluster.cache import as_number
from tf_dist.core import names
from tf_dist.core.claims import driver_of
from tf_dist.core.dialects import read
from tf_dist.core.gang.admit import admit
from tf_dist.core.gang.snapshot import Claim, seconds, snapshot
from tf_dist.core.observed import pod_view
from tf_dist.core.pruned_status import CONDITION, RESOURCE, carried, restored
from tf_dist.core.quantity import parse_quantity
from tf_dist.core.queue_document import read_queue
from tf_dist.core.rules import rules_of
from tf_dist.core.status import Status
from tf_dist.core.status_codec import (
    NewerFormat,
    check_version,
    glimpse,
    is_newer,
    load_status,
    shown_status,
    stored_status,
)
from tf_dist.core.stored_values import InvalidStatus, parse_ranges
from tf_dist.core.times import format_micro_time, format_time, parse_time
from tf_dist.driver import slim
from tf_dist.driver.intents import ADMITTING, _named
from tf_dist.driver.lease import LeaseRef, Observation, Terms, acquired, broken
from tf_dist.errors import InvalidJob, InvalidQueue

Reader = Callable[[Any], object]

# -- what may stand anywhere --


# -- sound documents --

META: Final = {"name": "a", "namespace": "default", "uid": "uid-mnist", "resourceVersion": "7"}
MEMORY: Final = {
    "version": 1,
    "phase": "Running",
    "reason": "JobRunning",
    "message": "2 of 3",
    "since": "2027-01-15T08:00:00.000000Z",
    "created": "2027-01-15T08:00:00.000000Z",
    "attempts": {"job": 2, "tasks": {"worker": 1}, "pods": {"worker-0": 3}},
    "seen": {"worker": "0-1"},
    "succeeded": {"ps": "0"},
    "restarts": {"PodFailed": 2},
    "disruptions": {"NodeLost": 1},
    "pauses": {"worker-0": {"count": 2, "until": "2027-01-15T08:00:10.000000Z"}},
    "admission": {"at": "2027-01-15T08:00:00.000000Z", "placement": {"worker": {"n": 2}}, "sizes": {"worker": 2}},
    "lastSizes": {"worker": 2},
    "replicas": {"worker": {"running": 2}},
    "failure": {"event": "PodFailed", "replica": "worker-0", "code": 1, "at": "2027-01-15T08:00:00.000000Z"},
    "driver": "default/x",
    "acceptedSpec": {"generation": 1, "digest": "x", "data": "{}"},
    "refusedSpec": {"generation": 2, "digest": "y", "message": "no"},
}
CONDITIONS: Final = [{"type": "Running", "status": "True", "reason": "r", "message": "m"}]
JOB: Final = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "TFJob",
    "metadata": {**META, "annotations": {names.DRIVER: "default/y"}},
    "status": {"conditions": CONDITIONS, "state": {"phase": "Running"}, "tfDist": MEMORY},
}
PRUNED: Final = {**JOB, "status": {k: v for k, v in carried(JOB["status"], "TFJob").items() if k != "tfDist"}}  # type: ignore[arg-type]
PRUNED_JOB: Final = {**JOB, "status": {"controlledResources": {RESOURCE: json.dumps(MEMORY)}, "conditions": []}}
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
    "metadata": {**META, "labels": {names.DRIVER: "inline"}, "annotations": {ADMITTING: "[]"}},
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


def as_admission_sees(claims: list[Claim], nodes: list[Any], pods: list[Any]) -> object:
    return admit(snapshot(claims, nodes, pods, now=START + 1000))


def jobs_of(document: Any) -> list[Claim]:
    return [Claim(read(document), Status(), START), Claim(job(), ADMITTED, START)]


READERS: Final[dict[str, tuple[Mapping[str, Any], Reader, tuple[type[Exception], ...]]]] = {
    "status": (JOB, known, (InvalidStatus, NewerFormat)),
    "pruned": (PRUNED, known, (InvalidStatus, NewerFormat)),
    "pruned-volcano": (PRUNED_JOB, known, (InvalidStatus, NewerFormat)),
    "shown": (JOB, shown_status, ()),
    "glimpse": (JOB, lambda stored: glimpse(restored(stored["status"])), ()),
    "newer": (JOB, is_newer, ()),
    "driver": (JOB, driver_of, ()),
    "job": (TFJOB, read, (InvalidJob,)),
    "gang": (
        TFJOB,
        lambda document: as_admission_sees(jobs_of(document), [NODE], [POD]),
        (InvalidJob,),
    ),
    "queue": (QUEUE, read_queue, (InvalidQueue,)),
    "rules": (QUEUE, lambda queue: rules_of([queue], [CLASS]), ()),
    "priority-class": (CLASS, lambda one: rules_of([QUEUE], [one]), ()),
    "pod-view": (POD, lambda pod: pod_view(pod, "tensorflow"), ()),
    "pod": (POD, lambda pod: as_admission_sees(jobs_of(TFJOB), [NODE], [slim.pod(pod)]), ()),
    "node": (NODE, lambda node: as_admission_sees(jobs_of(TFJOB), [slim.node(node)], [POD]), ()),
    "same-room": (NODE, lambda node: slim.same_room(slim.node(node), slim.node(NODE)), ()),
    "lease": (LEASE, Terms.of, ()),
    "lease-acquired": (LEASE, lambda lease: acquired(lease, "me", 15, START), ()),
    "lease-broken": (LEASE, lambda lease: broken(lease, "me"), ()),
    "lease-seen": (LEASE, lambda lease: Observation().note(lease, 1.0), ()),
}


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_only_the_documented_error_leaves_a_reader(name: str, data: st.DataObject) -> None:
    document, reader, documented = READERS[name]
    accepts(reader, data.draw(disfigured(document)), *documented)


@pytest.mark.parametrize("name", READERS)
def test_no_bomb_goes_off_anywhere_in_a_document(name: str) -> None:
    document, reader, documented = READERS[name]
    paths = [path for path in places(dict(document)) if path[0] not in ("metadata", "apiVersion", "kind")]
    assert paths
    for path in paths:
        for bomb in BOMBS:
            found = copy.deepcopy(dict(document))
            put(found, path, bomb)
            accepts(reader, found, *documented)


# -- single values --

VALUES: Final[dict[str, tuple[Reader, tuple[type[Exception], ...]]]] = {
    "time": (parse_time, ()),
    "quantity": (parse_quantity, (ValueError,)),
    "ranges": (lambda text: list(parse_ranges(str(text)[:200_000])) if isinstance(text, str) else None, (ValueError,)),
    "duration": (lambda text: seconds(text) if isinstance(text, str) else None, ()),
    "version": (as_number, ()),
    "lease-ref": (lambda text: LeaseRef.parse(text) if isinstance(text, str) else None, ()),
    "named": (lambda text: _named({"metadata": {"annotations": {ADMITTING: text}}}), ()),
    "memory": (lambda text: restored({"conditions": [{"type": CONDITION, "message": text}]}), ()),
    "status": (restored, ()),
}


@pytest.mark.parametrize("name", VALUES)
@given(value=ANYTHING)
@settings(max_examples=150, deadline=None)
def test_only_the_documented_error_leaves_a_reader_of_a_value(name: str, value: Any) -> None:
    reader, documented = VALUES[name]
    accepts(reader, value, *documented)


@pytest.mark.parametrize("name", VALUES)
def test_no_value_is_a_bomb(name: str) -> None:
    reader, documented = VALUES[name]
    for bomb in BOMBS:
        accepts(reader, bomb, *documented)


@given(st.floats())
def test_every_number_of_seconds_has_a_text(number: float) -> None:
    assert parse_time(format_time(number)) is not None
    assert parse_time(format_micro_time(number)) is not None


@given(st.text(alphabet="0123456789-,", max_size=60))
def test_ranges_give_no_more_than_a_job_may_have(text: str) -> None:
    try:
        found = list(parse_ranges(text))
    except ValueError:
        return
    assert found == sorted(set(found))
    assert len(found) <= 100_000

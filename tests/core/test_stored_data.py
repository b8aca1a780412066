"""Readers of what is stored in a cluster: whatever stands there, only the error that is documented leaves them.

Documents are sound ones in which anything anywhere is exchanged for anything; bombs are short inputs that would cost
far more than they are long.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.gang.test_demand import ADMITTED, START, job
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

DEEP: Final = "[" * 50_000 + "]" * 50_000


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


BOMBS: Final[list[Any]] = [
    10**40,
    10**300,
    -(10**300),
    1e308,
    float("inf"),
    float("nan"),
    "9" * 100_000,
    "1e999999999",
    "1e400",
    "0-3000000",
    "0-99999," * 2000,
    "0-99999999999999999999",
    DEEP,
    nested(500),
    "\x00",
    "\ud800",
    "١٢",
    "²",
    "9999-12-31T23:59:59-23:59",
    "0001-01-01T00:00:00+23:59",
    True,
    [None],
    {"a": {"b": [1]}},
    {"": ""},
]

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(BOMBS)
    | st.sampled_from(["True", "Pending", "Running", "0-2,5", "worker-0", "2027-01-15T08:00:00Z", "64Gi", "1e40"])
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything within a document."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield (*path, key)
        yield from places(inner, (*path, key))


def disfigured(document: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """The document with something else in up to three places. What the API server sees to itself stays."""
    kept = ("metadata", "apiVersion", "kind")
    paths = [path for path in places(document) if path[0] not in kept]

    @st.composite
    def changed(draw: st.DrawFn) -> Any:
        found = copy.deepcopy(dict(document))
        for path in draw(st.lists(st.sampled_from(paths), min_size=1, max_size=3)):
            put(found, path, draw(ANYTHING))
        return found

    return changed()


def put(document: Any, path: tuple[Any, ...], value: Any) -> None:
    """Does nothing where the way is not there any more."""
    with suppress(KeyError, IndexError, TypeError):
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value


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
    for path in places(dict(document)):
        if path[0] not in ("metadata", "apiVersion", "kind"):
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

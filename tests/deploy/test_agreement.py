"""The controller's reader, the embedded API server and the definitions accept the same documents.

The cases change each field of a valid document to many values that users write by mistake.
"""

from __future__ import annotations

import copy
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.thorough import ALL
from tf_dist.cluster.api import TFJOBS, TFJOBS_V1ALPHA1, VOLCANO_JOBS, Resource
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.core.dialects import read
from tf_dist.core.dialects.queue_resource import read_queue
from tf_dist.errors import InvalidJob, InvalidQueue, Rejected
from tf_dist.local.embedded import ADMISSION_VALIDATORS
from tools.definitions.builders import RULES
from tools.definitions.crds import queues, tfjobs, volcano_jobs

Document = dict[str, Any]
Path = tuple[str | int, ...]
DELETED: Final = object()


def template() -> Document:
    container = {
        "name": "tensorflow",
        "image": "x",
        "env": [{"name": "A", "value": "b"}],
        "resources": {"limits": {"cpu": "1"}},
    }
    return {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container], "volumes": [{"name": "v"}]}}


def document(api_version: str, kind: str, **spec: Any) -> Document:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": "mnist", "namespace": "default"},
        "spec": spec,
    }


SCHEDULING = {
    "minAvailable": 2,
    "queue": "q",
    "priorityClass": "p",
    "scheduleTimeoutSeconds": 3,
    "minResources": {"cpu": 1},
}
RUN_POLICY = {
    "cleanPodPolicy": "All",
    "backoffLimit": 3,
    "ttlSecondsAfterFinished": 3,
    "activeDeadlineSeconds": 9,
    "suspend": False,
    "managedBy": "kubeflow.org/training-operator",
    "schedulingPolicy": SCHEDULING,
}
V1 = document(
    "kubeflow.org/v1",
    "TFJob",
    runPolicy=RUN_POLICY,
    successPolicy="AllWorkers",
    enableDynamicWorker=True,
    tfReplicaSpecs={
        "PS": {"replicas": 1, "restartPolicy": "Never", "template": template()},
        "Worker": {"replicas": 2, "restartPolicy": "Never", "template": template()},
        "Chief": {"replicas": 1, "template": template()},
    },
)
V1ALPHA1 = document(
    "kubeflow.org/v1alpha1",
    "TFJob",
    **{"min-instance": 1, "max-instance": 4, "batch-size": 3, "total-number": 4},
    RuntimeId="abcd",
    tfImage="x",
    modelName="m",
    terminationPolicy={"chief": {"replicaName": "MASTER", "replicaIndex": 0}},
    schedulerName="s",
    cleanupPodPolicy="All",
    replicaSpecs=[
        {"tfReplicaType": "MASTER", "replicas": 1, "tfPort": 2222, "template": template()},
        {"tfReplicaType": "WORKER", "replicas": 2, "template": template()},
        {"tfReplicaType": "PS", "replicas": 1},
    ],
)
VOLCANO = document(
    "batch.volcano.sh/v1alpha1",
    "Job",
    minAvailable=2,
    schedulerName="volcano",
    priorityClassName="p",
    queue="q",
    maxRetry=3,
    minSuccess=1,
    ttlSecondsAfterFinished=3,
    runningEstimate="1h",
    networkTopology={"mode": "hard"},
    plugins={"svc": ["--disable-network-policy=true"], "env": []},
    policies=[{"event": "PodFailed", "action": "RestartJob"}, {"exitCode": 3, "action": "AbortJob", "timeout": "3m"}],
    volumes=[{"mountPath": "/a", "volumeClaimName": "c"}],
    tasks=[
        {"name": "ps", "replicas": 1, "template": template()},
        {
            "name": "worker",
            "replicas": 2,
            "minAvailable": 1,
            "maxRetry": 3,
            "topologyPolicy": "none",
            "dependsOn": {"name": ["ps"], "iteration": "any"},
            "policies": [{"events": ["PodEvicted"], "action": "RestartTask"}],
            "template": template(),
        },
    ],
)
KINDS: Final[dict[str, tuple[Document, Resource, Document]]] = {
    "v1": (V1, TFJOBS, tfjobs()),
    "v1alpha1": (V1ALPHA1, TFJOBS_V1ALPHA1, tfjobs()),
    "volcano": (VOLCANO, VOLCANO_JOBS, volcano_jobs()),
}
VALUES: Final[tuple[Any, ...]] = (
    *(None, "", "x", "X", "3", "Always", "1h", "1e3", "a" * 64, "a" * 300, 0, -1, 1, 2, 3, 5, 64, 100_000, 100_001),
    *(2**31 - 1, 2**31, 2**63 - 1, 1.5, True, False, [], {}, ["x"], [3], [{}], [None], {"x": "y"}, {"x": {}}),
    *({"x": 3}, {"x": None}, [{"x": 1}] * 65),
)
NAMES: Final = ("a" * 63, "a" * 64, "9a", "A", "a.b", "a" * 50, "a" * 54, "a" * 55, "a" * 56, "a-")
OF_V1ALPHA1: Final = ("tfImage", "RuntimeId", "min-instance", "terminationPolicy")
ADDED: Final[dict[str, list[tuple[Path, Any]]]] = {
    "v1": [
        *(
            (("spec", "tfReplicaSpecs", key), {**more, "template": template()})
            for key in ("chief", "MASTER", "worker", "Evaluator", "Foo", "P\u017f", "PS ")
            for more in ({}, {"replicas": 0})
        ),
        (("spec", "tfReplicaSpecs"), {"Worker": {"replicas": 0, "template": template()}}),
        (("spec", "tfReplicaSpecs"), {"PS": {"template": template()}}),
        (("spec", "replicaSpecs"), []),
        (("spec", "replicaSpecs"), None),
        (("spec", "replicaSpecs"), V1ALPHA1["spec"]["replicaSpecs"]),
        *((("spec", key), value) for key in OF_V1ALPHA1 for value in VALUES),
        *((("spec", "backoffLimit"), value) for value in VALUES),
        (("spec", "newer"), {"a": 1}),
        (("spec", "runPolicy", "newer"), {"a": 1}),
    ],
    "v1alpha1": [
        (("spec", "replicaSpecs"), V1ALPHA1["spec"]["replicaSpecs"] * 2),
        (("spec", "tfReplicaSpecs"), {}),
        (("spec", "tfReplicaSpecs"), None),
        *((("spec", key), value) for key in ("runPolicy", "backoffLimit", "successPolicy") for value in VALUES),
        (("spec", "runPolicy"), {"suspend": 3}),
        (("spec", "newer"), 3),
        (("spec", "min-instance"), 5),
        *((("spec", "RuntimeId"), "r" * length) for length in (30, 45, 46, 47, 48, 60)),
    ],
    "volcano": [
        (("spec", "queue"), "root"),
        (("spec", "plugins"), {"ssh": []}),
        (("spec", "plugins"), {"tensorflow": None}),
        (("spec", "policies"), [{"event": "PodFailed", "exitCode": 1, "action": "AbortJob"}]),
        (("spec", "policies"), [{"exitCode": 0, "action": "AbortJob"}]),
        (("spec", "tasks"), [{"name": "a", "replicas": 0, "template": template()}]),
        (("spec", "tasks"), [{"name": "a", "replicas": 1, "template": template()}] * 2),
        (("spec", "tasks"), [{"replicas": 1, "template": template()}] * 257),
        (("spec", "tasks"), [{"replicas": 1, "template": template()}] * 9),
        (("spec", "newer"), 3),
    ],
}
# Problems that only the reader detects: quantities, references and sums. A definition accepts these documents.
READERS_OWN: Final = re.compile(
    r"is not a quantity|must not be negative, not the number -1 ?|with it the job has more than|there is no task"
    r"|unknown argument|is not a duration|unknown value|must start with a letter"
    r"|is required and missing \(give the job a"
    r"|replicaIndex: must be a whole number, not nothing|so no container starts"
)


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield (*path, key)
        yield from places(below, (*path, key))


def changed(base: Document, path: Path, value: Any) -> Document:
    result = copy.deepcopy(base)
    here: Any = result
    for key in path[:-1]:
        here = here[key]
    if value is DELETED:
        del here[path[-1]]
    else:
        here[path[-1]] = copy.deepcopy(value)
    return result


def places_to_change(spec: Document) -> Iterator[Path]:
    """All fields. ``make test`` changes the fields of only one template, because all templates have the same."""
    seen = set()
    for path in places(spec, ("spec",)):
        inside = path[path.index("template") :] if "template" in path else path
        if ALL or inside not in seen:
            yield path
        seen.add(inside)


def cases(kind: str) -> Iterator[tuple[str, Document]]:
    base = KINDS[kind][0]
    yield "as it is", base
    for number, path in enumerate(places_to_change(base["spec"])):
        # ``make test`` uses every other value, so two fields together have all values.
        for value in (DELETED, *(VALUES if ALL else VALUES[number % 2 :: 2])):
            yield f"{path}: {value!r:.60}", changed(base, path, value)
    for name in NAMES:
        yield f"name {name}", changed(base, ("metadata", "name"), name)
    for path, value in ADDED[kind]:
        yield f"{path}: {value!r:.60}", changed(base, path, value)


def refused_by_reader(found: Document) -> str:
    try:
        read(found)
    except InvalidJob as error:
        return str(error)
    return ""


@functools.cache
def read_cases(kind: str) -> tuple[tuple[str, Document, str], ...]:
    """All cases with the problems that the reader reports."""
    return tuple((what, found, refused_by_reader(found)) for what, found in cases(kind))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_embedded_server_and_reader_refuse_same_documents(kind: str) -> None:
    with MemoryCluster(validators=ADMISSION_VALIDATORS) as cluster:
        for what, found, why in read_cases(kind):
            refused = ""
            try:
                cluster.create(KINDS[kind][1], "default", found, dry_run=True)
            except Rejected as error:
                refused = str(error)
            assert bool(refused) == bool(why), what


def server_of(definition: Document, version: str) -> Any:
    """An API server's validation of objects of a definition."""
    reason = "cel-expr-python is not installed"
    apiserver = pytest.importorskip("tests.deploy.apiserver", reason=reason, exc_type=ImportError)
    versions = definition["spec"]["versions"]
    schema = next(one["schema"]["openAPIV3Schema"] for one in versions if one["name"] == version)
    return apiserver.Definition(schema)


@functools.cache
def judged(kind: str) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """All cases with the problems that the reader and the definition report."""
    _, resource, definition = KINDS[kind]
    server = server_of(definition, resource.version)
    return tuple((what, why, tuple(server.refusals(found))) for what, found, why in read_cases(kind))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_definition_accepts_documents_that_reader_accepts(kind: str) -> None:
    gaps = []
    for what, why, refused in judged(kind):
        assert why or not refused, (what, refused)
        if not refused and any(not READERS_OWN.search(line) for line in why.splitlines()):
            gaps.append((what, why))
    assert gaps == []


def rules_in(schema: Any) -> Iterator[Document]:
    if isinstance(schema, dict):
        yield from schema.get(RULES) or ()
        for inner in schema.values():
            yield from rules_in(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from rules_in(inner)


def test_every_validation_rule_refuses_some_case() -> None:
    told: dict[str, int] = defaultdict(int)
    for kind in KINDS:
        for _, _, refused in judged(kind):
            for refusal in refused:
                told[refusal.partition(": ")[2]] += 1
    rules = {rule["message"]: rule["rule"] for one in (tfjobs(), volcano_jobs()) for rule in rules_in(one)}
    assert {message for message, rule in rules.items() if "oldSelf" not in rule} <= told.keys()


def edited(kind: str, *changes: tuple[Path, Any]) -> Document:
    found = KINDS[kind][0]
    for path, value in changes:
        found = changed(found, path, value)
    return found


MANAGER: Final[Path] = ("spec", "runPolicy", "managedBy")
ONE_MORE: Final[Document] = {**VOLCANO["spec"]["tasks"][0], "name": "more"}
EDITS: Final = [
    (V1, edited("v1", (MANAGER, "kueue.x-k8s.io/multikueue")), "runPolicy.managedBy is immutable"),
    (V1, edited("v1", (MANAGER, DELETED)), ""),
    (
        edited("v1", (MANAGER, "kueue.x-k8s.io/multikueue")),
        edited("v1", (MANAGER, DELETED)),
        "runPolicy.managedBy is immutable",
    ),
    (edited("v1", (("spec", "runPolicy"), DELETED)), V1, ""),
    (V1ALPHA1, edited("v1alpha1", (("spec", "RuntimeId"), "efgh")), "RuntimeId is immutable"),
    (V1ALPHA1, edited("v1alpha1", (("spec", "RuntimeId"), DELETED)), ""),
    (edited("v1alpha1", (("spec", "RuntimeId"), DELETED)), V1ALPHA1, ""),
    (edited("v1alpha1", (("spec", "RuntimeId"), "")), V1ALPHA1, ""),
    (V1, {**V1, "spec": V1ALPHA1["spec"]}, "a job keeps its layout"),
    (V1, edited("v1", (("spec", "tfReplicaSpecs", "Worker", "replicas"), 5)), ""),
    (VOLCANO, edited("volcano", (("spec", "queue"), "other")), "the queue of a job cannot be changed"),
    (VOLCANO, edited("volcano", (("spec", "priorityClassName"), "high")), ""),
    (
        VOLCANO,
        edited("volcano", (("spec", "tasks"), [*VOLCANO["spec"]["tasks"], ONE_MORE])),
        "may not add or remove tasks",
    ),
]


@pytest.mark.parametrize(("before", "after", "told"), EDITS)
def test_definitions_refuse_changes_of_immutable_fields(before: Document, after: Document, told: str) -> None:
    definition, version = (tfjobs(), "v1") if after["kind"] == "TFJob" else (volcano_jobs(), "v1alpha1")
    server = server_of(definition, version)
    assert server.refusals(before) == server.refusals(after) == []
    refused = server.refusals(after, before)
    assert any(told in one for one in refused) if told else refused == []


def test_queue_cannot_be_its_own_parent() -> None:
    server = server_of(queues(), "v1alpha1")
    for parent, refused in (("team", True), ("all", False), ("", False)):
        found = server.refusals({"metadata": {"name": "team"}, "spec": {"parent": parent}})
        assert bool(found) == refused


SELECTORS: Final = [
    ({}, False),
    ({"matchLabels": {"team": "vision", "tier": ""}}, False),
    ({"matchLabels": {"team": 1}}, True),
    ({"matchLabels": {"team": "a b"}}, True),
    *(
        ({"matchExpressions": [{"key": "team", "operator": operator, **values}]}, refused)
        for operator, values, refused in [
            ("In", {"values": ["a"]}, False),
            ("NotIn", {"values": ["a", ""]}, False),
            ("Exists", {}, False),
            ("DoesNotExist", {"values": []}, False),
            ("In", {}, True),
            ("NotIn", {"values": []}, True),
            ("Exists", {"values": ["a"]}, True),
            ("DoesNotExist", {"values": ["a"]}, True),
            ("Is", {"values": ["a"]}, True),
            ("In", {"values": ["a!"]}, True),
        ]
    ),
    ({"matchExpressions": [{"key": "a b", "operator": "Exists"}]}, True),
    ({"matchExpressions": [{"operator": "Exists"}]}, True),
    ({"matchExpressions": [{"key": "example.com/a", "operator": "Exists"}] * 64}, False),
    ({"matchExpressions": [{"key": "a", "operator": "Exists"}] * 65}, True),
]


@pytest.mark.parametrize(("selector", "refused"), SELECTORS)
def test_definition_and_reader_refuse_same_queue_selectors(selector: Document, refused: bool) -> None:
    written = {"metadata": {"name": "team"}, "spec": {"namespaceSelector": selector}}
    assert bool(server_of(queues(), "v1alpha1").refusals(written)) == refused
    stored = {"apiVersion": "tf-dist.dev/v1alpha1", "kind": "Queue", **written}
    if refused:
        with pytest.raises(InvalidQueue):
            read_queue(stored)
    else:
        assert read_queue(stored).namespace_selector is not None

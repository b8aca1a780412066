"""Anti-affinity and host ports of pods, expressed as amounts that admission counts."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.builders import START, replicas, template, v1_job
from tests.core.gang.placement.nodes import PATIENT
from tests.core.gang.stored import admitter_of, node, seen
from tests.thorough import thorough
from tf_dist.core.gang.admission import AdmissionChanges
from tf_dist.core.gang.placement.anti_affinity import (
    HOSTNAME,
    Exclusions,
    ExclusiveResources,
    Port,
    anti_affinity,
    exclusions,
    host_ports,
)
from tf_dist.core.gang.types import EXCLUSIVE_CAPACITY, AdmissionRequest
from tf_dist.core.model.job import Job
from tf_dist.core.model.pods import REQUIRED_AFFINITY
from tf_dist.core.model.status import Status

Spec = dict[str, Any]


def term(topology: str = HOSTNAME, **fields: Any) -> Spec:
    return {"topologyKey": topology, "labelSelector": {"matchLabels": {"app": "a"}}, **fields}


def apart(*terms: Spec) -> Spec:
    return {"affinity": {"podAntiAffinity": {REQUIRED_AFFINITY: list(terms)}}}


def ports(*stated: Spec, **spec: Any) -> Spec:
    return {"containers": [{"ports": list(stated)}], **spec}


EXISTS = {"matchExpressions": [{"key": "app", "operator": "Exists"}]}
IN = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "b"]}]}
NOT_IN = {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]}
ABSENT = {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}


@pytest.mark.parametrize(
    ("stated", "selected"),
    [
        (term(), ["ns/a"]),
        (term(labelSelector=EXISTS), ["ns/a", "ns/b"]),
        (term(labelSelector=IN), ["ns/a", "ns/b"]),
        (term(labelSelector=NOT_IN), ["ns/b", "ns/"]),
        (term(labelSelector=ABSENT), ["ns/"]),
        (term(labelSelector={}), ["ns/a", "ns/b", "ns/"]),
        (term(labelSelector=None), []),
        (term(namespaces=["other"]), ["other/a"]),
        (term(namespaces=["other", "ns"]), ["ns/a", "other/a"]),
        (term(namespaceSelector={}), ["ns/a", "other/a"]),
        (term(namespaces=[], namespaceSelector=None), ["ns/a"]),
    ],
)
def test_term_selects_same_pods_as_in_kubernetes(stated: Spec, selected: list[str]) -> None:
    [read], every = anti_affinity(apart(stated), "ns")
    pods = product(("ns", "other"), ({"app": "a"}, {"app": "b"}, {}))
    assert every
    assert [f"{ns}/{labels.get('app', '')}" for ns, labels in pods if read.selects(ns, labels)] == selected


@pytest.mark.parametrize(
    "stated",
    [
        term(namespaceSelector={"matchLabels": {"team": "x"}}),
        term(matchLabelKeys=["pod-template-hash"]),
        term(mismatchLabelKeys=["tenant"]),
        term(labelSelector={"matchExpressions": [{"key": "app", "operator": "Gt", "values": ["1"]}]}),
    ],
)
def test_unsupported_term_makes_pods_unpredictable(stated: Spec) -> None:
    assert anti_affinity(apart(stated), "ns") == ((), False)
    assert not exclusions([(apart(stated), {}, 1)], "ns").predictable


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ({}, []),
        (ports({"containerPort": 80}), []),
        (ports({"containerPort": 80, "hostPort": 8080}), [("TCP", 8080, "")]),
        (ports({"hostPort": 53, "protocol": "UDP", "hostIP": "10.0.0.1"}), [("UDP", 53, "10.0.0.1")]),
        (ports({"hostPort": 53, "hostIP": "0.0.0.0"}), [("TCP", 53, "")]),
        (ports({"containerPort": 80}, hostNetwork=True), [("TCP", 80, "")]),
        ({"initContainers": [{"ports": [{"hostPort": 1}]}]}, []),
        ({"initContainers": [{"ports": [{"hostPort": 1}], "restartPolicy": "Always"}]}, [("TCP", 1, "")]),
        ({"containers": [{"ports": "nonsense"}, "nonsense", {"ports": [{"hostPort": "http"}]}]}, []),
    ],
)
def test_host_ports_of_pod(spec: Spec, found: list[tuple[str, int, str]]) -> None:
    assert list(host_ports(spec)) == found


@pytest.mark.parametrize(
    ("spec", "predictable"),
    [
        ({}, True),
        (apart(term()), True),
        (apart(term("topology.kubernetes.io/zone")), False),
        (apart(term(labelSelector={"matchLabels": {"tf-dist.dev/replica-index": "0"}})), False),
        ({"affinity": {"podAffinity": {REQUIRED_AFFINITY: [term()]}}}, False),
        ({"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}}, True),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}, True),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, False),
        ({"topologySpreadConstraints": [{}]}, False),
        ({"resourceClaims": [{"name": "gpu"}]}, False),
        ({"affinity": ["nonsense"], "topologySpreadConstraints": 5}, True),
    ],
)
def test_constraints_left_to_scheduler_are_unpredictable(spec: Spec, predictable: bool) -> None:
    assert exclusions([(spec, {"app": "a"}, 2)], "ns").predictable is predictable


TERMS = st.sampled_from(
    [term(), term(labelSelector={"matchLabels": {"app": "b"}}), term(labelSelector=EXISTS), term(labelSelector={})]
)
PORTS = st.sampled_from(
    [{"hostPort": 1}, {"hostPort": 1, "hostIP": "10.0.0.1"}, {"hostPort": 1, "hostIP": "10.0.0.2"}, {"hostPort": 2}]
)


@st.composite
def specs(draw: st.DrawFn) -> tuple[Spec, dict[str, str], int]:
    stated = draw(st.lists(TERMS, max_size=2))
    asked = draw(st.lists(PORTS, max_size=2))
    labels = draw(st.sampled_from(({}, {"app": "a"}, {"app": "b"})))
    return {**apart(*stated), "containers": [{"ports": asked}]}, labels, draw(st.integers(1, 3))


def _excludes(one: tuple[Spec, dict[str, str], int], other: tuple[Spec, dict[str, str], int]) -> bool:
    """Whether kube-scheduler keeps two pods off the same node."""
    for (spec, _, _), (_, labels, _) in ((one, other), (other, one)):
        if any(term.selects("ns", labels) for term in anti_affinity(spec, "ns")[0]):
            return True
    return any(
        mine[:2] == theirs[:2] and (not mine.ip or not theirs.ip or mine.ip == theirs.ip)
        for mine, theirs in product(host_ports(one[0]), host_ports(other[0]))
    )


def _fit_together(found: Exclusions, numbers: tuple[int, ...]) -> bool:
    keys = {key for member in found.members for key in member}
    members = list(zip(found.members, numbers, strict=True))
    return all(sum(member.get(key, 0) * count for member, count in members) <= EXCLUSIVE_CAPACITY for key in keys)


@given(st.lists(specs(), min_size=1, max_size=3))
@thorough(500)
def test_amounts_allow_same_pods_on_node_as_kube_scheduler(gang: list[tuple[Spec, dict[str, str], int]]) -> None:
    found = exclusions(gang, "ns")
    for numbers in product(*(range(count + 1) for _, _, count in gang)):
        pods = [spec for spec, number in zip(gang, numbers, strict=True) for _ in range(number)]
        together = not any(_excludes(one, other) for one, other in combinations(pods, 2))
        if found.predictable:
            assert _fit_together(found, numbers) == together
        elif together:
            assert _fit_together(found, numbers), "what is counted must not forbid what the scheduler allows"


# -- amounts that bound pods take --


def job(**spec: Any) -> Job:
    body = template(containers=[{"name": "tensorflow", "ports": [{"hostPort": 1}]}], **apart(term()), **spec)
    body["metadata"] = {"labels": {"app": "a"}}
    return v1_job(replicas("Worker", 2, template=body))


def pod(on: str | None, app: str, *stated: Spec, port: int = 0) -> Spec:
    container = {"ports": [{"hostPort": port}]} if port else {}
    metadata = {"name": "p", "namespace": "default", "labels": {"app": app, "tf-dist.dev/replica-index": "7"}}
    spec = {"containers": [container], **(apart(*stated) if stated else {})} | ({"nodeName": on} if on else {})
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}


CLAIMS = [AdmissionRequest(job(), Status(), START)]


def taken(*pods: Spec) -> dict[str, int]:
    """The amounts that bound pods take of the exclusive resources of the job, by the text of the resource."""
    made = seen(admitter_of(CLAIMS, [node("n")], pods))
    found = made.nodes["n"]
    [worker] = made.gangs[CLAIMS[0].job.uid].members
    return {
        one.text: EXCLUSIVE_CAPACITY - int(found.free.get(one.name, EXCLUSIVE_CAPACITY)) for one in worker.exclusives
    }


def test_bound_pods_take_exclusive_resources() -> None:
    affinity, port = "pod anti-affinity to app=a", "host port 1"
    assert taken() == {affinity: 0, port: 0}
    assert taken(pod("n", "a"), pod("n", "a"), pod("n", "b"), pod("m", "a"), pod(None, "a")) == {affinity: 2, port: 0}
    assert taken(pod("n", "a", term())) == {affinity: EXCLUSIVE_CAPACITY, port: 0}
    assert taken(pod("n", "b", port=1)) == {affinity: 0, port: EXCLUSIVE_CAPACITY}
    assert taken(pod("n", "b", port=2)) == {affinity: 0, port: 0}


PODS = st.none() | st.builds(
    pod,
    st.sampled_from(["n", "m", None]),
    st.sampled_from(["a", "b"]),
    st.sampled_from([term(), term("zone")]),
    port=st.sampled_from([0, 1]),
)


@given(
    st.lists(st.tuples(st.integers(0, 4), PODS, st.booleans()), max_size=30),
    st.randoms(use_true_random=False),
    st.integers(1, 9),
)
@settings(PATIENT)
def test_incremental_updates_equal_new_admitter(steps: list[tuple[int, Any, bool]], dice: Any, often: int) -> None:
    nodes = [node("n"), node("m")]
    admitter, pods, untold = admitter_of([], nodes), dict[str, Any](), set[str]()
    [claim] = CLAIMS
    for number, (name, new, wanted) in enumerate(steps):
        pods[str(name)] = new
        untold.add(str(name))
        if number % often == 0:
            told = sorted(untold)
            dice.shuffle(told)
            jobs = {claim.job.uid: claim if wanted else None}
            admitter.update(AdmissionChanges(jobs=jobs, pods={uid: pods[uid] for uid in told}))
            admitter.refresh()
            untold.clear()
            there = [one for one in pods.values() if one is not None]
            assert seen(admitter) == seen(admitter_of(CLAIMS if wanted else [], nodes, there))


def test_columns_are_reused_and_limited() -> None:
    columns = ExclusiveResources()

    def of(number: int) -> tuple[list[str], bool]:
        [found], predictable = columns.exclusives(Exclusions(({Port("TCP", number): EXCLUSIVE_CAPACITY},)))
        return [one.name for one in found], predictable

    names = [of(number)[0][0] for number in range(1, 129)]
    assert len(set(names)) == 128
    assert of(1) == ([names[0]], True)
    assert of(4711) == ([], False)
    columns.hold("first", frozenset(names[:1]))
    columns.hold("others", frozenset(names))
    columns.settle()
    assert of(4711) == ([], False)
    columns.hold("others", frozenset(names[1:]))
    columns.settle()
    assert of(4711) == ([], False), "the first gang has it still"
    columns.hold("first", frozenset())
    columns.settle()
    assert of(4711) == ([names[0]], True)
    assert of(128) == ([names[127]], True), "the others have theirs still"

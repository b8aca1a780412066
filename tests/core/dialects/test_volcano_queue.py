"""Conversion of Volcano's queues: each field of ``scheduling.volcano.sh/v1beta1``, and the resulting queues."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from tf_dist.core.dialects.queue_resource import parse_queue
from tf_dist.core.dialects.volcano_queue import convert_queues, is_volcano_queue, served_queues
from tf_dist.core.gang.quota import Quotas
from tf_dist.core.gang.resources.admission_config import admission_config, namespace_mismatch
from tf_dist.errors import InvalidQueue


def volcano(name: str = "research", *, state: str = "Open", annotations: Any = None, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "annotations": annotations or {}}
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": metadata,
        "spec": spec,
        "status": {"state": state},
    }


def queue_of_ours(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "tf-dist.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def spec_of(document: dict[str, Any]) -> Any:
    (found,) = convert_queues([document])
    parse_queue(found.document)
    return found.document["spec"]


CLOSED = {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "DoesNotExist"}]}


@pytest.mark.parametrize(
    ("document", "spec"),
    [
        (volcano(), {}),
        (volcano("default", weight=1, reclaimable=True), {"weight": 1}),
        (volcano(weight=0), {}),
        (volcano(capability={"cpu": 8}), {"quotas": {"cpu": {"nominal": "8"}}}),
        (volcano(capability={"cpu": "500m"}), {"quotas": {"cpu": {"nominal": "500m"}}}),
        (volcano(dequeueStrategy="fifo"), {"order": "StrictFIFO"}),
        (volcano(dequeueStrategy="traverse"), {"order": "BestEffortFIFO"}),
        (volcano(state="Closed"), {"namespaceSelector": CLOSED}),
        (volcano(state="Closing"), {"namespaceSelector": CLOSED}),
        (volcano(state="Unknown"), {}),
        (volcano(reclaimable=False), {"reclaimable": False}),
        (volcano(priority=3), {"priority": 3}),
        (volcano(priority=0), {}),
        (volcano(deserved={"cpu": 4}), {"parent": "root", "quotas": {"cpu": {"nominal": "4"}}}),
        (
            volcano(deserved={"cpu": 4}, capability={"cpu": 10}),
            {"parent": "root", "quotas": {"cpu": {"nominal": "4", "borrowingLimit": "6"}}},
        ),
        (
            volcano(deserved={"cpu": 4}, guarantee={"resource": {"cpu": 1}}),
            {"parent": "root", "quotas": {"cpu": {"nominal": "4", "lendingLimit": "3"}}},
        ),
        (
            volcano(parent="lab", capability={"cpu": 4}),
            {"parent": "lab", "quotas": {"cpu": {"nominal": "0", "borrowingLimit": "4"}}},
        ),
        (
            volcano(parent="lab", guarantee={"resource": {"cpu": 2}}),
            {"parent": "lab", "quotas": {"cpu": {"nominal": "2", "lendingLimit": "0"}}},
        ),
        (volcano("root", deserved={"cpu": 64}), {"parent": "", "quotas": {"cpu": {"nominal": "64"}}}),
        (volcano("root", capability={"cpu": 64}), {"quotas": {"cpu": {"nominal": "64"}}}),
    ],
)
def test_converts_queue(document: dict[str, Any], spec: dict[str, Any]):
    assert spec_of(document) == spec


def test_parent_keeps_quota_that_its_children_do_not_have():
    lab = volcano("lab", deserved={"cpu": 10})
    teams = [volcano(name, parent="lab", deserved={"cpu": 4}) for name in ("one", "two")]
    found = convert_queues([lab, *teams])
    assert [one.document["spec"]["quotas"]["cpu"]["nominal"] for one in found] == ["2", "4", "4"]


def test_children_share_limit_of_parent():
    lab = volcano("lab", capability={"cpu": 10})
    teams = [volcano(name, parent="lab", capability={"cpu": 8}) for name in ("one", "two")]
    quotas = Quotas(parse_queue(one.document).queue for one in convert_queues([lab, *teams]))
    need = {"cpu": Decimal(1)}
    assert quotas.fits("one", {"cpu": Decimal(8)})
    assert not quotas.fits("one", {"cpu": Decimal(9)})
    quotas.take("one", {"cpu": Decimal(8)})
    assert quotas.fits("two", {"cpu": Decimal(2)})
    assert not quotas.fits("two", {"cpu": Decimal(3)})
    assert not quotas.fits("one", need)


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (volcano(guarantee={"resource": {"cpu": 1}}), "spec.guarantee"),
        (volcano(affinity={"nodeGroupAffinity": {}}), "spec.affinity"),
        (volcano(extendClusters=[{"name": "far"}]), "spec.extendClusters"),
        (volcano(type="x"), "spec.type"),
        (volcano(deserved={"cpu": 1}), "spec.deserved"),
        (volcano(annotations={"volcano.sh/hierarchy": "root/a"}), 'metadata.annotations["volcano.sh/hierarchy"]'),
    ],
)
def test_reports_lost_fields(document: dict[str, Any], path: str):
    (found,) = convert_queues([document])
    assert [problem.path for problem in found.lost] == [path]


def test_default_queues_of_volcano_lose_nothing():
    made = [volcano("default", weight=1, reclaimable=True), volcano("root", weight=1, reclaimable=True)]
    assert [one.lost for one in convert_queues(made)] == [(), ()]


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (volcano(capability={"cpu": "much"}), "spec.capability.cpu"),
        (volcano(deserved={"cpu": None}), "spec.deserved.cpu"),
        (volcano(guarantee={"resource": {"cpu": []}}), "spec.guarantee.resource.cpu"),
        (volcano(capability={"cpu": -1}), "spec.capability.cpu"),
        (volcano(deserved={"memory": "-1Gi"}), "spec.deserved.memory"),
        (volcano(guarantee={"resource": {"cpu": "-500m"}}), "spec.guarantee.resource.cpu"),
        (volcano(deserved={"cpu": 1}, guarantee={"resource": {"cpu": "1500m"}}), "spec.deserved.cpu"),
        (volcano(deserved={"cpu": 4, "memory": 1}, capability={"cpu": 2}), "spec.capability.cpu"),
        (volcano(guarantee={"resource": {"cpu": 4}}, capability={"cpu": 2}), "spec.capability.cpu"),
        (volcano(weight=-1), "spec.weight"),
        (volcano(weight="2"), "spec.weight"),
        (volcano(priority="high"), "spec.priority"),
        (volcano(priority=2**31), "spec.priority"),
        ({**volcano(), "metadata": None}, "metadata.name"),
    ],
)
def test_invalid_field_is_reported_with_its_path(document: dict[str, Any], path: str):
    with pytest.raises(InvalidQueue) as caught:
        convert_queues([document])
    assert [problem.path for problem in caught.value.problems] == [path]


def test_accepts_guarantee_equal_to_deserved_and_capability() -> None:
    amounts = {"cpu": "2"}
    convert_queues([volcano(deserved={"cpu": 2}, capability={"cpu": "2000m"}, guarantee={"resource": amounts})])


def test_capability_below_deserved_has_hint() -> None:
    with pytest.raises(InvalidQueue) as caught:
        convert_queues([volcano(deserved={"cpu": 4}, capability={"cpu": 2})])
    (problem,) = caught.value.problems
    assert (problem.message, problem.hint) == ("is 2, less than spec.deserved, 4", "write 4 or more")


def test_recognizes_volcano_queues():
    assert is_volcano_queue(volcano())
    assert not is_volcano_queue({**volcano(), "apiVersion": "tf-dist.dev/v1alpha1"})
    assert not is_volcano_queue({**volcano(), "kind": "PodGroup"})
    assert not is_volcano_queue([])


MADE_BY_VOLCANO = [volcano("default", weight=1, reclaimable=True), volcano("root", weight=1, reclaimable=True)]


@pytest.mark.parametrize(
    ("stored", "taken", "names"),
    [
        ([], (), []),
        (MADE_BY_VOLCANO, (), []),
        ([*MADE_BY_VOLCANO, volcano("lab")], (), ["default", "root", "lab"]),
        ([volcano("default", capability={"cpu": 4})], (), ["default"]),
        ([volcano("default", state="Closed")], (), ["default"]),
        ([volcano("lab"), volcano("team", parent="lab")], ("team",), ["lab"]),
        ([volcano("lab", capability={"cpu": "much"}), volcano("team")], (), ["team"]),
        ([volcano("lab", capability={"cpu": "much"})], (), []),
        ([volcano("loop", parent="loop"), volcano("lab")], (), ["lab"]),
        ([volcano("lab", parent=7, weight=True)], (), []),
        ([{**volcano("lab"), "spec": None}], (), ["lab"]),
    ],
)
def test_served_queues(stored: list[dict[str, Any]], taken: tuple[str, ...], names: list[str]):
    assert [queue.name for queue in served_queues(stored, taken)] == names


@pytest.mark.parametrize(
    ("ours", "theirs", "weights"),
    [
        ([], [], None),
        ([], MADE_BY_VOLCANO, None),
        ([], [volcano("lab", weight=2)], {"lab": 2}),
        ([queue_of_ours("lab", weight=5)], [volcano("lab", weight=2)], {"lab": 5}),
        ([queue_of_ours("lab", weight="heavy")], [volcano("lab", weight=2), volcano("team")], {"team": 1}),
    ],
)
def test_own_queue_replaces_volcano_queue_of_same_name(ours: Any, theirs: Any, weights: dict[str, int] | None):
    found = admission_config(ours, [], volcano_queues=theirs).queues
    assert (None if found is None else {queue.name: queue.weight for queue in found}) == weights


def test_queue_closed_in_spec_is_closed():
    (queue,) = served_queues([{**volcano("lab"), "spec": {"state": "Closed"}}])
    assert "is closed" in namespace_mismatch(queue, "vision", {})


@pytest.mark.parametrize(("closed", "expected"), [("", []), ("leaf", ["leaf"]), ("lab", ["lab", "leaf"]), ("loop", [])])
def test_children_of_closed_queue_are_closed(closed: str, expected: list[str]):
    """volcano-sh/volcano, test/e2e/jobseq/queue.go: Queue Command Close And Open With Hierarchical Queues."""
    parents = {"lab": "root", "leaf": "lab", "other": "root", "loop": "loop"}
    made = [
        volcano(name, parent=above, state="Closed" if name == closed else "Open") for name, above in parents.items()
    ]
    assert [queue.name for queue in served_queues(made) if queue.namespace_selector is not None] == expected

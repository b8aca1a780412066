"""Queue documents: their meaning, and the errors of invalid ones."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tf_dist.core.dialects.queue_resource import check_together, is_queue, parse_queue, read_queue
from tf_dist.core.gang.quota import Quotas
from tf_dist.core.gang.resources.admission_config import admission_config
from tf_dist.core.model.gang_queue import PreemptionPolicy, Queue, QueueingStrategy, Quota
from tf_dist.core.model.names import Requirement
from tf_dist.errors import InvalidJob, InvalidQueue

EXAMPLES = Path(__file__).parents[3] / "examples" / "queues"
GPU = "nvidia.com/gpu"


def document(name: str = "vision", **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "tf-dist.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def problems(written: dict[str, Any]) -> list[str]:
    with pytest.raises(InvalidQueue) as caught:
        parse_queue(written)
    return [str(problem) for problem in caught.value.problems]


def warnings(written: dict[str, Any]) -> list[str]:
    return [str(problem) for problem in parse_queue(written).warnings]


def test_parses_every_field() -> None:
    quotas = {GPU: {"nominal": 4, "borrowingLimit": "2", "lendingLimit": 1}, "memory": {"nominal": "1.5Gi"}}
    selector = {
        "matchLabels": {"team": "vision"},
        "matchExpressions": [
            {"key": "example.com/tier", "operator": "NotIn", "values": ["test", ""]},
            {"key": "owner", "operator": "Exists"},
            {"key": "archived", "operator": "DoesNotExist", "values": []},
        ],
    }
    written = document(
        parent="research",
        weight=3,
        order="StrictFIFO",
        preemption="LowerPriority",
        defaultPriority=-5,
        quotas=quotas,
        namespaceSelector=selector,
    )
    assert parse_queue(written).queue == Queue(
        name="vision",
        parent="research",
        weight=3,
        order=QueueingStrategy.STRICT_FIFO,
        preemption=PreemptionPolicy.LOWER_PRIORITY,
        default_priority=-5,
        quotas={
            GPU: Quota(nominal=Decimal(4), borrowing_limit=Decimal(2), lending_limit=Decimal(1)),
            "memory": Quota(nominal=Decimal(3 << 29)),
        },
        namespace_selector=(
            Requirement("team", "In", frozenset({"vision"})),
            Requirement("example.com/tier", "NotIn", frozenset({"test", ""})),
            Requirement("owner", "Exists", frozenset()),
            Requirement("archived", "DoesNotExist", frozenset()),
        ),
    )
    assert parse_queue(written).warnings == ()


def test_queue_needs_only_a_name() -> None:
    assert parse_queue(document()).queue == Queue(name="vision")


def test_accepts_keys_of_api_server() -> None:
    stored = {**document(weight=2), "status": {"pending": 1}}
    stored["metadata"] = {"name": "vision", "uid": "u", "resourceVersion": "1", "managedFields": [], "generation": 1}
    assert parse_queue(stored).queue == read_queue(stored) == Queue(name="vision", weight=2)


def test_reports_all_problems_with_paths_and_hints() -> None:
    written = document(
        "Vision",
        parant="research",
        weight=0,
        order="FIFO",
        quotas={"gpu": {"nominal": 4}, "cpu": {"nominal": "4 cores"}, "memory": {"nominl": 1}, GPU: {"nominal": -1}},
    )
    found = problems(written)
    assert "spec.parant: unknown key (did you mean parent?)" in found
    assert "spec.weight: must be at least 1, not 0" in found
    assert any(text.startswith("spec.order: unknown value 'FIFO'") for text in found)
    assert any(
        text.startswith("spec.quotas.gpu: is not a resource") and "did you mean nvidia.com/gpu?" in text
        for text in found
    )
    assert any(
        text.startswith("spec.quotas.cpu.nominal: is not a quantity: the text '4 cores' (write") for text in found
    )
    assert "spec.quotas.memory.nominl: unknown key (did you mean nominal?)" in found
    assert any(text.startswith("spec.quotas.memory.nominal: is required and missing") for text in found)
    assert 'spec.quotas["nvidia.com/gpu"].nominal: must not be negative, not the number -1 (write 0 or more)' in found
    assert len(found) == 8


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (document(parent="vision"), "spec.parent: a queue cannot be its own parent"),
        (document("a" * 64), "metadata.name: is 64 characters long"),
        (document("Vision"), 'write "vision"'),
        (document(parent="Research"), 'write "research"'),
        (document(defaultPriority=2**31), "spec.defaultPriority: must be at most 2147483647"),
        (document(quotas={"requests.cpu": {"nominal": 1}}), "did you mean cpu?"),
        (document(quotas={"requests.nvidia.com/gpu": {"nominal": 1}}), "did you mean nvidia.com/gpu?"),
        (document(quotas={"memry": {"nominal": 1}}), "did you mean memory?"),
        (document(quotas=[1]), "spec.quotas: must be a mapping (key: value), not a list"),
        (document(quotas={"cpu": 4}), "spec.quotas.cpu: must be a mapping (key: value), not the number 4"),
        (document(quotas={"cpu": {"nominal": True}}), "spec.quotas.cpu.nominal: is not a quantity: the boolean true"),
        (
            document(quotas={"cpu": {"nominal": 1, "lendingLimit": []}}),
            "spec.quotas.cpu.lendingLimit: is not a quantity",
        ),
        (document(preemption={"withinQueue": "Never"}), "spec.preemption: unknown value: a mapping"),
        ({**document(), "apiVersion": "tf-dist.dev/v1"}, "apiVersion: a queue is of apiVersion tf-dist.dev/v1alpha1"),
        ({**document(), "metadata": {}}, "metadata.name: is required and missing"),
        ({"apiVersion": "tf-dist.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "a"}}, "spec: is required"),
    ],
)
def test_refuses_invalid_queues(written: dict[str, Any], told: str) -> None:
    assert any(told in text for text in problems(written)), problems(written)


def test_empty_selector_differs_from_missing_selector() -> None:
    for read in (lambda written: parse_queue(written).queue, read_queue):
        assert read(document()).namespace_selector is None
        assert read(document(namespaceSelector=None)).namespace_selector is None
        assert read(document(namespaceSelector={})).namespace_selector == ()
        assert read(document(namespaceSelector={"matchLabels": None, "matchExpressions": []})).namespace_selector == ()


def expression(**rule: Any) -> dict[str, Any]:
    return {"matchExpressions": [{"key": "team", "operator": "Exists"}, rule]}


@pytest.mark.parametrize(
    ("selector", "told"),
    [
        ("team=vision", "spec.namespaceSelector: must be a mapping (key: value), not the text"),
        ({"matchLabls": {"a": "b"}}, "spec.namespaceSelector.matchLabls: unknown key (did you mean matchLabels?)"),
        ({"matchLabels": {"team": 1}}, "spec.namespaceSelector.matchLabels.team: must be text, not the number 1"),
        (
            {"matchLabels": {"-a": "b"}},
            "spec.namespaceSelector.matchLabels.-a: '-a' is not the key of a label",
        ),
        ({"matchLabels": {"a" * 64: "b"}}, "is not the key of a label"),
        ({"matchLabels": {"UP/a": "b"}}, "'UP/a' is not the key of a label"),
        (
            {"matchLabels": {"a": "b c"}},
            "spec.namespaceSelector.matchLabels.a: 'b c' is not the value of a label",
        ),
        (expression(operator="In", values=["a"]), "spec.namespaceSelector.matchExpressions[1].key: is required"),
        (expression(key="a"), "spec.namespaceSelector.matchExpressions[1].operator: is required and missing"),
        (expression(key="a", operator="Is", values=["b"]), "matchExpressions[1].operator: unknown value 'Is'"),
        (expression(key="", operator="Exists"), "matchExpressions[1].key: is required and missing"),
        (expression(key="a", operator="In"), "matchExpressions[1].values: is required and missing (In needs"),
        (expression(key="a", operator="NotIn", values=[]), "matchExpressions[1].values: is required and missing"),
        (expression(key="a", operator="Exists", values=["b"]), "matchExpressions[1].values: must be left out: Exists"),
        (
            expression(key="a", operator="In", values=["b", "c!"]),
            "matchExpressions[1].values[1]: 'c!' is not the value",
        ),
        (expression(key="a", operator="In", value=["b"]), "matchExpressions[1].value: unknown key"),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}] * 65}, "has 65 entries; 64 are allowed"),
    ],
)
def test_refuses_invalid_selectors_in_new_and_stored_queues(selector: Any, told: str) -> None:
    written = document(namespaceSelector=selector)
    assert any(told in text for text in problems(written)), problems(written)
    with pytest.raises(InvalidQueue) as stored:
        read_queue(written)
    assert any(told in str(problem) for problem in stored.value.problems)


def test_selector_has_at_most_64_rules() -> None:
    rules = {"matchExpressions": [{"key": "a", "operator": "Exists"}] * 64}
    assert warnings(document(namespaceSelector=rules)) == []
    rules["matchExpressions"] *= 2
    assert "64" in problems(document(namespaceSelector=rules))[0]


def test_reports_all_problems_of_selector_at_once() -> None:
    rules = [{"key": "a b", "operator": "Is"}, {"key": "a", "operator": "In", "values": ["?"]}, {"operator": "Exists"}]
    found = problems(document(weight=0, namespaceSelector={"matchLabels": {"?": "!"}, "matchExpressions": rules}))
    assert sorted(text.split(": ")[0] for text in found) == [
        "spec.namespaceSelector.matchExpressions[0].key",
        "spec.namespaceSelector.matchExpressions[0].operator",
        "spec.namespaceSelector.matchExpressions[1].values[0]",
        "spec.namespaceSelector.matchExpressions[2].key",
        'spec.namespaceSelector.matchLabels["?"]',
        'spec.namespaceSelector.matchLabels["?"]',
        "spec.weight",
    ]


def test_warns_of_fields_without_effect() -> None:
    alone = document(quotas={"cpu": {"nominal": 1, "borrowingLimit": 1}})
    assert ["spec.quotas.cpu.borrowingLimit: has no effect" in text for text in warnings(alone)] == [True]
    generous = document(parent="p", quotas={"cpu": {"nominal": 1, "lendingLimit": 2}})
    assert ["is more than nominal" in text for text in warnings(generous)] == [True]
    placed = document()
    placed["metadata"]["namespace"] = "ml"
    assert ["are not namespaced" in text for text in warnings(placed)] == [True]


def test_stored_queue_may_have_unknown_keys_and_resources() -> None:
    stored = document("team.a", newer=1, quotas={"gpu": {"nominal": 1, "newer": 2}})
    assert read_queue(stored) == Queue(name="team.a", quotas={"gpu": Quota(nominal=Decimal(1))})


def test_invalid_stored_queue_raises_invalid_job() -> None:
    with pytest.raises(InvalidJob):
        read_queue(document(weight="two"))


def test_recognizes_queue_documents() -> None:
    assert is_queue(document())
    assert is_queue({"kind": "Queue"})
    assert not is_queue({"kind": "Queue", "apiVersion": "scheduling.volcano.sh/v1beta1"})
    assert not is_queue({"kind": "TFJob"})
    assert not is_queue(["Queue"])


def test_refuses_cycle_of_parents_and_warns_of_unknown_parent() -> None:
    queues = [Queue(name="a", parent="b"), Queue(name="b", parent="a"), Queue(name="c", parent="a")]
    found = list(check_together(queues))
    assert [(position, warning) for position, _, warning in found] == [(0, False), (1, False)]
    told = list(check_together([Queue(name="research"), Queue(name="vision", parent="reserch")]))
    assert [(at, problem.hint, warning) for at, problem, warning in told] == [(1, "did you mean research?", True)]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_examples_are_valid(path: Path) -> None:
    parsed = [parse_queue(written) for written in yaml.safe_load_all(path.read_text())]
    assert not [warning for one in parsed for warning in one.warnings]
    queues = [one.queue for one in parsed]
    assert not list(check_together(queues))
    assert not Quotas(queues).problems


def test_example_lends_and_borrows_as_documented() -> None:
    teams = [parse_queue(one).queue for one in yaml.safe_load_all((EXAMPLES / "two-teams.yaml").read_text())]

    def most(queue: str, **held: int) -> int:
        quotas = Quotas(teams)
        for name, count in held.items():
            quotas.take(name, {GPU: Decimal(count)})
        return max(count for count in range(100) if quotas.fits(queue, {GPU: Decimal(count)}))

    assert most("vision", vision=8) == 2
    assert most("speech", vision=10) == 2
    assert most("speech", speech=4) == 4
    lent = Quotas(teams)
    lent.take("vision", {GPU: Decimal(10)})
    assert lent.reclaims("speech", {GPU: Decimal(4)}, "vision")


def test_invalid_queue_does_not_hide_others() -> None:
    found = admission_config([document("broken", weight=-1), document("vision")], [])
    assert [queue.name for queue in found.queues or ()] == ["vision"]


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=2),
    max_leaves=6,
)
KEYS = st.sampled_from(
    ["parent", "weight", "quotas", "order", "preemption", "defaultPriority", "namespaceSelector", "odd"]
)
QUOTAS = st.dictionaries(
    st.sampled_from(["cpu", GPU, "gpu"]), ANY | st.dictionaries(st.sampled_from(["nominal", "lendingLimit"]), ANY)
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(KEYS, ANY | QUOTAS), ANY)
def test_any_document_is_queue_or_error(spec: dict[str, Any], metadata: Any) -> None:
    for written in (document(**spec), {**document(**spec), "metadata": metadata}, {"kind": "Queue", "spec": spec}):
        for read in (parse_queue, read_queue):
            assert _outcome(read, written)


def _outcome(read: Any, written: dict[str, Any]) -> object:
    try:
        return read(written)
    except InvalidQueue as error:
        return error.problems

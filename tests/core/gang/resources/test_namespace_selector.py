"""Queues that are open only to some namespaces: which jobs may start, and the messages of the others."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import v1_job
from tests.core.gang.gangs import World, gang, gangs_of, message, node, placed, queue, reason, workers
from tests.core.gang.stored import admitter_of, seen
from tf_dist.core.gang.resources.admission_config import NamespaceMatcher, namespace_mismatch
from tf_dist.core.gang.types import AdmissionConfig, AdmissionRequest
from tf_dist.core.model.assignment import Wait
from tf_dist.core.model.gang_queue import Queue, QueueingStrategy
from tf_dist.core.model.job import JobKey
from tf_dist.core.model.names import requirements
from tf_dist.core.model.status import Status

NAME = "kubernetes.io/metadata.name"
SPEECH = {"team": "speech", "tier": "prod"}


def only(**selector: Any) -> Queue:
    return queue("vision", gpu=8, namespace_selector=requirements(selector))


def rule(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


@pytest.mark.parametrize(
    ("selector", "labels", "opens"),
    [
        (None, SPEECH, True),
        (None, None, True),
        ({}, SPEECH, True),
        ({}, None, True),
        ({"matchLabels": {"team": "speech"}}, SPEECH, True),
        ({"matchLabels": {"team": "speech", "tier": "test"}}, SPEECH, False),
        ({"matchLabels": {"team": "vision"}}, {}, False),
        (rule("team", "In", "vision", "speech"), SPEECH, True),
        (rule("team", "In", "vision"), SPEECH, False),
        (rule("team", "NotIn", "vision"), SPEECH, True),
        (rule("team", "NotIn", "speech"), SPEECH, False),
        (rule("team", "NotIn", "speech"), {}, True),
        (rule("team", "Exists"), SPEECH, True),
        (rule("owner", "Exists"), SPEECH, False),
        (rule("owner", "DoesNotExist"), SPEECH, True),
        (rule("team", "DoesNotExist"), SPEECH, False),
        ({"matchLabels": {"team": "speech"}, **rule("tier", "In", "test")}, SPEECH, False),
        # Every namespace has its name as a label, even if its labels are unknown.
        ({"matchLabels": {NAME: "speech"}}, {}, True),
        ({"matchLabels": {NAME: "speech"}}, None, True),
        (rule(NAME, "In", "vision"), None, False),
        # Unknown labels match nothing, not even a rule that a label must be absent.
        ({"matchLabels": {"team": "speech"}}, None, False),
        (rule("restricted", "DoesNotExist"), None, False),
        (rule("team", "NotIn", "vision"), None, False),
        ({"matchLabels": {NAME: "speech"}, **rule("team", "NotIn", "vision")}, None, False),
        # A name label with the name of another namespace does not match.
        ({"matchLabels": {NAME: "vision"}}, {NAME: "vision"}, False),
    ],
)
def test_namespace_selector_matches_labels(
    selector: Mapping[str, Any] | None, labels: Mapping[str, str] | None, opens: bool
) -> None:
    of = queue("vision", namespace_selector=None if selector is None else requirements(selector))
    assert (namespace_mismatch(of, "speech", labels) == "") is opens


def test_mismatch_message_explains_selector() -> None:
    told = namespace_mismatch(
        only(matchLabels={"team": "vision"}, **rule("tier", "NotIn", "test", "dev")), "speech", {}
    )
    assert told.startswith('queue "vision" is not open to namespace "speech": ')
    assert "namespaceSelector (team=vision,tier notin (dev, test))" in told
    unknown = namespace_mismatch(only(matchLabels={"team": "vision"}), "speech", None)
    assert unknown.startswith('queue "vision" is not open to namespace "speech": ')
    assert "list and watch namespaces" in unknown


def test_message_of_long_selector_is_shortened() -> None:
    labels = {f"label-{number}": "a" * 63 for number in range(64)}
    wide = namespace_mismatch(only(**rule("team", "In", *(f"team-{number}" for number in range(500)))), "speech", {})
    assert max(len(wide), len(namespace_mismatch(only(matchLabels=labels), "speech", {}))) < 700


SHUT = 'queue "vision" is not open to namespace "ml": so it is'


def test_inadmissible_gang_uses_nothing_and_blocks_no_gang() -> None:
    world = World([node("n", gpu=8)], [queue("vision", gpu=8, order=QueueingStrategy.STRICT_FIFO)])
    world.put(gang("a", workers(8), queue="vision", inadmissible=SHUT), gang("b", workers(8), at=1, queue="vision"))
    verdicts = world.decide(100_000)
    assert verdicts["a"] == Wait(reason="NamespaceMismatch", message=SHUT)
    assert reason(verdicts["b"]) == "Admit"
    facts = world.scheduler.queue_usages()["vision"]
    assert (facts.pending, facts.admitted) == (1, 1)


def test_inadmissible_gang_does_not_preempt() -> None:
    world = World([node("n", gpu=8)], [queue("vision", gpu=8)])
    world.put(placed(gang("low", workers(8), queue="vision"), {"worker": {"n": 8}}))
    world.put(gang("high", workers(8), at=1, priority=9, queue="vision", inadmissible=SHUT))
    verdicts = world.decide(100_000)
    assert {uid: reason(verdict) for uid, verdict in verdicts.items()} == {"high": "NamespaceMismatch"}


def test_wait_reason_follows_namespace_selector_changes() -> None:
    world = World([node("n", gpu=8)], [queue("vision", gpu=8)])
    waits = gang("a", workers(2), queue="vision", inadmissible=SHUT)
    world.put(waits)
    assert reason(world.decide(1)["a"]) == "NamespaceMismatch"
    assert world.decide(2) == {}
    world.put(gang("full", workers(8), queue="default", priority=1))
    world.decide(3)
    world.put(replace(waits, inadmissible=""))
    assert reason(world.decide(4)["a"]) == "WaitingForCapacity"
    world.put(waits)
    assert message(world.decide(5)["a"]) == SHUT


def test_inadmissible_running_gang_keeps_running_and_does_not_grow() -> None:
    def runs(inadmissible: str) -> World:
        world = World([node("n", gpu=8)], [queue("vision", gpu=8)])
        members = workers(2, least=1, most=8)
        mine = gang("a", members, queue="vision", inadmissible=inadmissible)
        world.put(placed(mine, {"worker": {"n": 2}}))
        return world

    assert reason(runs("").decide(1000)["a"]) == "Resize"
    assert runs(SHUT).decide(1000) == {}


# From documents


def claim(namespace: str, of: str = "vision") -> AdmissionRequest:
    job = v1_job()
    scheduling = replace(job.scheduling, queue=of)
    key = JobKey(namespace, "mnist")
    return AdmissionRequest(replace(job, key=key, uid=f"{namespace}-{of}", scheduling=scheduling), Status(), 0.0)


def test_only_selector_of_own_queue_applies() -> None:
    """The selector of the parent queue does not apply."""
    rules = AdmissionConfig(
        queues=(
            queue("research", gpu=8, namespace_selector=requirements({"matchLabels": {"team": "none"}})),
            replace(only(matchLabels={"team": "vision"}), parent="research"),
            replace(queue("open", gpu=8), parent="research"),
        )
    )
    claims = [claim("vision"), claim("speech"), claim("speech", "open"), claim("speech", "")]
    labels = {"vision": {"team": "vision"}, "speech": {"team": "speech"}}
    found = list(seen(admitter_of(claims, None, config=rules, namespaces=labels.get)).gangs.values())
    assert [gang.inadmissible != "" for gang in found] == [False, True, False, False]
    assert found[1].inadmissible.startswith('queue "vision" is not open to namespace "speech": ')


def test_default_queue_may_have_namespace_selector() -> None:
    of = replace(only(matchLabels={"team": "vision"}), name="default")
    for queues, closed in (((of,), True), ((), False), (None, False)):
        admitter = admitter_of(
            [claim("speech", "")], None, config=AdmissionConfig(queues=queues), namespaces=lambda _: {}
        )
        assert (gangs_of(admitter.scheduler)[0].inadmissible != "") is closed


def test_label_change_updates_only_jobs_of_that_namespace() -> None:
    rules = AdmissionConfig(queues=(only(matchLabels={"team": "vision"}),))
    claims = [claim("speech"), claim("sound")]
    labels: dict[str, dict[str, str]] = {"speech": {}, "sound": {}}
    admitter = admitter_of(claims, None, config=rules, namespaces=labels.get)
    before = seen(admitter).gangs
    assert [gang.inadmissible != "" for gang in before.values()] == [True, True]
    admitter.refresh()
    assert all(gang is before[uid] for uid, gang in seen(admitter).gangs.items())
    labels["speech"] = {"team": "vision"}
    admitter.refresh()
    after = seen(admitter).gangs
    assert after["speech-vision"].inadmissible == ""
    assert after["sound-vision"] is before["sound-vision"]


def test_match_is_cached_until_queue_or_labels_change() -> None:
    class Counted(UserDict[str, str]):
        looks = 0

        def keys(self) -> Any:
            Counted.looks += 1
            return super().keys()

    of = only(matchLabels={"team": "vision"})
    labels: dict[str, Mapping[str, str]] = {"speech": Counted(team="speech")}
    matcher = NamespaceMatcher(labels.get)
    for _ in range(3):
        matcher.update((of,))
        for _ in range(100):
            assert matcher.mismatch("vision", "speech")
    assert Counted.looks == 1
    assert not matcher.mismatch("default", "speech")
    assert matcher.update((only(matchLabels={"team": "speech"}),))
    assert not matcher.mismatch("vision", "speech")
    assert Counted.looks == 2
    assert not matcher.update((only(matchLabels={"team": "speech"}),))
    labels["speech"] = {}
    assert matcher.update((only(matchLabels={"team": "speech"}),))
    assert matcher.mismatch("vision", "speech")
    assert Counted.looks == 2

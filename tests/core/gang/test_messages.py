"""Messages of waiting gangs: what they need, what is free, and what prevents their admission."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.gang.gangs import Snapshot, admit, gang, member, message, node

IN_A, IN_B = {"labels": {"zone": "a"}}, {"labels": {"zone": "b"}}


@pytest.mark.parametrize(
    ("wanted", "nodes", "said"),
    [
        ({"cpu": 1}, {}, "the cluster has no node"),
        (
            {"cpu": 1, "selector": {"zone": "b"}},
            {"n": {"cpu": 4, **IN_A}},
            "needs 2 × (cpu 1) for w, but no node matches its node selector, affinity and tolerations",
        ),
        # Only nodes that the gang may use count as free.
        (
            {"cpu": 1, "selector": {"zone": "b"}},
            {"n": {"cpu": 4, **IN_A}, "m": {"cpu": 2, "used": {"cpu": 1}, **IN_B}},
            "needs 2 × (cpu 1) for w, 1 more than fit; free: cpu 1 on 1 node; position 1",
        ),
        # A node with negative free capacity does not hide the free capacity of another.
        (
            {"cpu": 2},
            {"n": {"cpu": 4, "used": {"cpu": 9}}, "m": {"cpu": 2}},
            "needs 2 × (cpu 2) for w, 1 more than fit; free: cpu 2 on 2 nodes; position 1",
        ),
    ],
)
def test_message_explains_why_gang_waits(wanted: dict[str, Any], nodes: dict[str, Any], said: str) -> None:
    there = tuple(node(name, **amounts) for name, amounts in nodes.items())
    found = admit(Snapshot(gangs=(gang("a", member("w", 2, **wanted)),), nodes=there, now=10))
    assert message(found["a"]) == said

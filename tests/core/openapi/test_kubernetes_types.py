"""The types of Kubernetes' own kinds."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from tf_dist.core.openapi import kubernetes_types
from tf_dist.core.openapi.kubernetes_types import TypeMistake, type_mistakes

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "labels": {"a": "b"}},
    "spec": {
        "containers": [{"name": "c", "env": [{"name": "A", "value": "1"}], "resources": {"limits": {"cpu": "1"}}}],
        "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}],
    },
}


def test_concurrent_type_checks_see_resolved_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Types are resolved on first use, and servers have many threads."""
    threads, before = 8, sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            monkeypatch.setattr(kubernetes_types, "_resolved", {})
            gate = Barrier(threads)

            def check(_: int, gate: Barrier = gate) -> list[TypeMistake]:
                gate.wait()
                return type_mistakes(POD, "Pod")

            with ThreadPoolExecutor(threads) as pool:
                assert list(pool.map(check, range(threads))) == [[]] * threads
    finally:
        sys.setswitchinterval(before)

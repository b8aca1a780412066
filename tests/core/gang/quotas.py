"""Builders of queues, quotas and requests."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from tf_dist.core.model.gang_queue import Queue, Quota

GPU = "nvidia.com/gpu"


def quota(nominal: float | str, borrow: float | None = None, lend: float | None = None) -> Quota:
    limits = [None if value is None else Decimal(str(value)) for value in (borrow, lend)]
    return Quota(nominal=Decimal(str(nominal)), borrowing_limit=limits[0], lending_limit=limits[1])


def queue(name: str, parent: str = "", *, weight: int = 1, **quotas: Any) -> Queue:
    read = {_resource(key): one if isinstance(one, Quota) else quota(one) for key, one in quotas.items()}
    return Queue(name=name, parent=parent, weight=weight, quotas=read)


def need(**amounts: float | str) -> dict[str, Decimal]:
    return {_resource(key): Decimal(str(value)) for key, value in amounts.items()}


def _resource(key: str) -> str:
    return GPU if key == "gpu" else key

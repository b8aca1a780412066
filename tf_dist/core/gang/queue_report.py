"""How a queue stands, as the status of its object says it: for programs, and in words for columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from tf_dist.core.gang.model import Resources
from tf_dist.core.gang.queues import Quotas
from tf_dist.core.quantity import format_quantity

_BINARY: Final = ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """A queue at one moment.

    ``pending``, ``admitted``: its own gangs. ``used``, ``borrowed`` and ``nominal`` count the queues below it, too.
    ``share``: how much of what is its own it holds, of the resource where that is most (1: all). ``problem``: what is
    wrong with its document, "" if nothing is.
    """

    pending: int
    admitted: int
    used: Resources
    borrowed: Resources
    nominal: Resources
    share: float
    problem: str = ""


def facts(quotas: Quotas, queue: str, *, pending: int, admitted: int) -> QueueFacts:
    """What there is to say of a queue."""
    return QueueFacts(
        pending=pending,
        admitted=admitted,
        used=quotas.used(queue),
        borrowed=quotas.borrowed(queue),
        nominal=quotas.nominal(queue),
        share=quotas.fill(queue),
        problem=quotas.problems.get(queue, ""),
    )


def queue_status(found: QueueFacts) -> dict[str, Any]:
    """The status of its object; equal for equal facts, so that nothing is written when nothing changed."""
    status: dict[str, Any] = {
        "pending": found.pending,
        "admitted": found.admitted,
        "used": _quantities(found.used),
        "borrowed": _quantities(found.borrowed),
        "usage": _usage(found.used, found.nominal),
        "share": f"{found.share:.0%}",
    }
    return {**status, "message": found.problem} if found.problem else status


def _quantities(resources: Resources) -> dict[str, str]:
    return {resource: exactly(value, resource) for resource, value in sorted(resources.items()) if value}


def exactly(value: Decimal, resource: str) -> str:
    """An amount as a quantity that says exactly this, and is easy to read: ``64Gi``, ``1500m``, ``4``."""
    if value == value.to_integral_value():
        if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
            for power, suffix in zip(range(6, 0, -1), _BINARY, strict=True):
                count, rest = divmod(int(value), 1024**power)
                if count and not rest:
                    return f"{count}{suffix}"
        return f"{int(value)}"
    thousandths = value * 1000
    return f"{int(thousandths)}m" if thousandths == thousandths.to_integral_value() else f"{value.normalize():f}"


def _usage(used: Resources, nominal: Mapping[str, Decimal]) -> str:
    """``nvidia.com/gpu 6/8, cpu 12``: what is used of what is its own, the scarce first."""
    shown = [resource for resource in {**nominal, **used} if resource in nominal or resource != "pods"]
    ordered = sorted(shown, key=lambda resource: ("/" not in resource, resource))
    return ", ".join(f"{resource} {_part(resource, used, nominal)}" for resource in ordered)


def _part(resource: str, used: Resources, nominal: Mapping[str, Decimal]) -> str:
    held = format_quantity(used.get(resource, Decimal(0)), resource)
    return f"{held}/{format_quantity(nominal[resource], resource)}" if resource in nominal else held

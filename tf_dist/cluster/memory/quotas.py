"""ResourceQuotas: pods and services beyond one are refused, and its status says what is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Final

from tf_dist.cluster.api import Object
from tf_dist.cluster.memory.context import Context
from tf_dist.cluster.memory.resources import Kind
from tf_dist.cluster.memory.store import Key
from tf_dist.core.gang.charges import pod_charge, read_quota
from tf_dist.core.gang.resource_quota import Charges, PodCharge, ResourceQuota
from tf_dist.errors import Forbidden

QUOTAS: Final = "resourcequotas"
_COUNTED: Final = ("pods", "services")
_SERVICE: Final = (("count/services", Decimal(1)), ("services", Decimal(1)))
_ENDED: Final = ("Succeeded", "Failed")


def check(context: Context, kind: Kind, obj: Object) -> None:
    """Forbidden if a new object would go beyond a quota of its namespace."""
    namespace = obj["metadata"].get("namespace", "")
    if kind.key not in _COUNTED or not context.store.by_age(QUOTAS, namespace):
        return
    for stored in context.store.by_age(QUOTAS, namespace).values():
        quota = _enforced(stored)
        need, used = _need(quota, kind.key, obj), _used(context, namespace, quota)
        over = sorted(name for name, value in need.items() if used.get(name, Decimal(0)) + value > quota.hard[name])
        if over:
            said = (("requested", need), ("used", used), ("limited", quota.hard))
            parts = (f"{word}: {','.join(f'{name}={_text(of.get(name))}' for name in over)}" for word, of in said)
            name = obj["metadata"].get("name", "")
            raise Forbidden(f'{kind.key} "{name}" is forbidden: exceeded quota: {quota.name}, {", ".join(parts)}')


def recounted(context: Context, key: Key, stored: Object) -> Object:
    """An object that was written, once the quotas of its namespace have been counted again."""
    recount(context, key)
    return context.store.get(key) or stored if key.kind == QUOTAS else stored


def recount(context: Context, key: Key) -> None:
    """Bring the statuses of a namespace's quotas up to date after a change of an object."""
    if key.kind not in (*_COUNTED, QUOTAS) or not key.namespace:
        return
    for name, stored in list(context.store.by_age(QUOTAS, key.namespace).items()):
        quota = _enforced(stored)
        used = _used(context, key.namespace, quota)
        status = {
            "hard": {resource: _text(value) for resource, value in quota.hard.items()},
            "used": {resource: _text(used.get(resource)) for resource in quota.hard},
        }
        if stored.get("status") != status:
            context.store.put(Key(QUOTAS, key.namespace, name), {**stored, "status": status})


def _enforced(stored: Object) -> ResourceQuota:
    return read_quota({**stored, "status": {}})


def _used(context: Context, namespace: str, quota: ResourceQuota) -> dict[str, Decimal]:
    used: dict[str, Decimal] = {}
    for kind, obj in _counted(context, namespace):
        for resource, value in _need(quota, kind, obj).items():
            used[resource] = used.get(resource, Decimal(0)) + value
    return used


def _counted(context: Context, namespace: str) -> Iterator[tuple[str, Object]]:
    for kind in _COUNTED:
        for obj in context.store.by_age(kind, namespace).values():
            if (obj.get("status") or {}).get("phase") not in _ENDED:
                yield kind, obj


def _need(quota: ResourceQuota, kind: str, obj: Object) -> Mapping[str, Decimal]:
    if kind == "services":
        return quota.need(Charges((), _SERVICE), ())
    one: PodCharge = pod_charge(obj["spec"])
    return quota.need(Charges((one,)), (1,))


def _text(value: Decimal | None) -> str:
    return f"{(value or Decimal(0)).normalize():f}"

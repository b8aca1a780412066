"""The three patch types: JSON merge, strategic merge, JSON patch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tf_dist.cluster.api import Object, PatchType
from tf_dist.cluster.api_errors import BadRequest, RequestEntityTooLarge
from tf_dist.errors import MissingPackage, Rejected

try:
    import jsonpatch
except ModuleNotFoundError as error:
    raise MissingPackage(
        "The embedded cluster needs the package jsonpatch",
        hint="pip install 'tf-dist[local]', in a checkout '.[local]'",
    ) from error

# The lists of the core kinds that merge by a key; every other list is replaced as a whole (tolerations and args too).
_MERGE_KEYS: Mapping[str, tuple[str, ...]] = {
    "addresses": ("type",),
    "conditions": ("type",),
    "containers": ("name",),
    "env": ("name",),
    "ephemeralContainers": ("name",),
    "hostAliases": ("ip",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ownerReferences": ("uid",),
    "podIPs": ("ip",),
    "ports": ("containerPort", "port"),
    "resourceClaims": ("name",),
    "schedulingGates": ("name",),
    "secrets": ("name",),
    "topologySpreadConstraints": ("topologyKey",),
    "volumeDevices": ("devicePath",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
_MERGED_SETS = frozenset({"finalizers"})
_MAX_OPERATIONS = 10_000


def apply_patch(obj: Object, patch: Any, kind: PatchType) -> Object:
    """The object after the patch; BadRequest or Rejected when the patch does not apply to it."""
    if kind is PatchType.JSON:
        return _json_patched(obj, patch)
    if not isinstance(patch, Mapping):
        raise BadRequest(f"a {kind} body must be an object, not {type(patch).__name__}")
    if kind is PatchType.MERGE:
        return merge_patch(obj, patch)
    try:
        return strategic_merge_patch(obj, patch)
    except (TypeError, KeyError, AttributeError) as error:
        raise BadRequest(f"the strategic merge patch does not fit the object: {error!r}") from error


def merge_patch(target: Any, patch: Mapping[str, Any]) -> Object:
    """RFC 7386: null removes, objects merge, everything else replaces."""
    result: Object = dict(target) if isinstance(target, Mapping) else {}
    for key, change in patch.items():
        if change is None:
            result.pop(key, None)
        elif isinstance(change, Mapping):
            result[key] = merge_patch(result.get(key), change)
        else:
            result[key] = change
    return result


def _json_patched(obj: Object, patch: Any) -> Object:
    if not isinstance(patch, list):
        raise BadRequest("a JSON patch must be a list of operations")
    if len(patch) > _MAX_OPERATIONS:
        raise RequestEntityTooLarge(f"a JSON patch may have at most {_MAX_OPERATIONS} operations")
    try:
        result = jsonpatch.JsonPatch(patch).apply(obj)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError, KeyError) as error:
        raise Rejected(f"the JSON patch cannot be applied: {error}") from error
    if not isinstance(result, dict):
        raise Rejected("the JSON patch does not leave an object")
    return result


def strategic_merge_patch(target: Any, patch: Mapping[str, Any]) -> Object:
    """Kubernetes' strategic merge: as ``merge_patch``, but known lists merge by key and ``$`` directives are obeyed."""
    directive = patch.get("$patch")
    if directive not in (None, "delete", "replace", "merge"):
        raise BadRequest(f"the patch has an unknown directive $patch: {directive!r}")
    if directive == "delete":
        return {}
    plain = {key: change for key, change in patch.items() if not key.startswith("$")}
    base: Object = {} if directive == "replace" or not isinstance(target, Mapping) else dict(target)
    if (retained := patch.get("$retainKeys")) is not None:
        if not isinstance(retained, list):
            raise BadRequest("$retainKeys must be a list of keys")
        base = {key: value for key, value in base.items() if key in retained}
    for key, change in plain.items():
        if change is None:
            base.pop(key, None)
        else:
            base[key] = _strategic_value(key, base.get(key), change)
    return _list_directives(base, patch)


def _strategic_value(field: str, old: Any, change: Any) -> Any:
    if isinstance(change, Mapping):
        return strategic_merge_patch(old, change)
    if not isinstance(change, list):
        return change
    if field in _MERGED_SETS:
        return [*(old or []), *(item for item in change if item not in (old or []))]
    key = _merge_key(field, change)
    if not key:
        return change
    return _merge_lists(key, old if isinstance(old, list) else [], change)


def _merge_key(field: str, items: list[Any]) -> str:
    if not all(isinstance(item, Mapping) for item in items):
        return ""
    for key in _MERGE_KEYS.get(field, ()):
        if all(key in item or item.get("$patch") == "replace" for item in items):
            return key
    return ""


def _merge_lists(key: str, old: list[Any], change: list[Any]) -> list[Any]:
    if any(item.get("$patch") == "replace" for item in change):
        return [item for item in change if "$patch" not in item]
    result = {item.get(key): item for item in old}
    for item in change:
        if item.get("$patch") == "delete":
            result.pop(item[key], None)
        else:
            result[item[key]] = strategic_merge_patch(result.get(item[key]), item)
    return list(result.values())


def _list_directives(base: Object, patch: Mapping[str, Any]) -> Object:
    """``$deleteFromPrimitiveList/x`` and ``$setElementOrder/x``, applied after the merge."""
    for name, value in patch.items():
        directive, _, field = name.partition("/")
        old = base.get(field)
        if not isinstance(old, list) or not isinstance(value, list):
            continue
        if directive == "$deleteFromPrimitiveList":
            base[field] = [item for item in old if item not in value]
        elif directive == "$setElementOrder":
            base[field] = _ordered(field, old, value)
    return base


def _ordered(field: str, items: list[Any], order: list[Any]) -> list[Any]:
    key = _merge_key(field, order)

    def mark(item: Any) -> Any:
        return item.get(key) if key and isinstance(item, Mapping) else item

    places = [mark(item) for item in order]
    return sorted(items, key=lambda item: places.index(mark(item)) if mark(item) in places else len(places))

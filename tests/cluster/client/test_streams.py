"""Only managed fields are removed before JSON is decoded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tf_dist.cluster.client.streams import decode_json, parse_body

# Texts that look like the delimiters that the decoder searches for.
_TRAPS = (
    '],"name":"x"',
    ']},"spec":{',
    ',"managedFields":[',
    "}]",
    "[",
    'x"],',
    "\\",
    '\\",\\"managedFields\\":[',
)
_TEXTS = st.one_of(st.sampled_from(_TRAPS), st.text(max_size=5))
_VALUES = st.recursive(
    st.one_of(_TEXTS, st.none(), st.booleans(), st.integers(-9, 9)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(_TEXTS, st.sampled_from(("name", "spec", "managedFields"))), inner, max_size=3),
    ),
    max_leaves=8,
)
_ENTRIES = st.lists(
    st.fixed_dictionaries(
        {"apiVersion": st.just("v1"), "fieldsV1": st.dictionaries(_TEXTS, st.just({}), max_size=2), "manager": _TEXTS}
    ),
    max_size=2,
)


def _built_in(identity: dict[str, Any], fields: Any, spec: Any) -> dict[str, Any]:
    """The order of members in which an API server writes its built-in kinds."""
    return {"kind": "Pod", "metadata": {**identity, "managedFields": fields}, "spec": spec, "status": {}}


def _custom(identity: dict[str, Any], fields: Any, spec: Any) -> dict[str, Any]:
    """Sorted members, as an API server writes custom objects."""
    metadata = {"creationTimestamp": "2027", "managedFields": fields, "name": "x", **identity}
    return {"kind": "TFJob", "metadata": metadata, "spec": spec}


def _without(value: Any) -> Any:
    """The value without managed fields that are lists, in any nested object."""
    if isinstance(value, list):
        return [_without(one) for one in value]
    if not isinstance(value, dict):
        return value
    listed = isinstance(value.get("managedFields"), list)
    return {key: _without(one) for key, one in value.items() if not (key == "managedFields" and listed)}


def _written(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


@given(
    st.sampled_from((_built_in, _custom)),
    st.dictionaries(_TEXTS, _TEXTS, max_size=2),
    st.one_of(_ENTRIES, _VALUES),
    _VALUES,
    st.booleans(),
)
@example(_custom, {}, [{"names": [{}], "name": 1}], 1, False)
@example(_custom, {"uid": 'a","managedFields":['}, [{"manager": "m"}], {"x": ["],"]}, True)
def test_only_managed_fields_are_removed(
    order: Any, identity: dict[str, Any], fields: Any, spec: Any, listed: bool
) -> None:
    stored = order(identity, fields, spec)
    whole = {"kind": "List", "items": [stored, stored]} if listed else stored
    decoded = decode_json(_written(whole))
    # The decoder may keep managed fields that are not easily found.
    assert _without(decoded) == _without(whole)
    assert decode_json(json.dumps(whole).encode()) == whole, "not as an API server writes"


@pytest.mark.parametrize("order", [_built_in, _custom])
def test_managed_fields_written_by_api_servers_are_removed(order: Any) -> None:
    fields = [{"manager": "kubelet", "fieldsV1": {"f:status": {'k:{"type":"Ready"}': {".": {}}}}}] * 2
    stored = order({"uid": "u"}, fields, {"containers": [{"name": "x"}]})
    pages = {"kind": "List", "items": [stored] * 3}
    assert decode_json(_written(pages)) == _without(pages) != pages


def test_invalid_json_becomes_the_message_of_the_error() -> None:
    assert parse_body(b'{"metadata":{"uid":"u","managedFields":[') == {
        "message": '{"metadata":{"uid":"u","managedFields":['
    }
    assert parse_body(b"") is None


@pytest.mark.parametrize("nested", ["[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000])
def test_object_that_is_nested_too_deeply_does_not_hide_the_others(nested: str) -> None:
    good = {"kind": "TFJob", "metadata": {"name": 'a"]}\\'}, "spec": {"x": [[{"[": 1}]]}}
    bad = {"kind": "TFJob", "metadata": {"name": "b"}, "spec": {"x": "VALUE", "y": [1, {"z": "]"}]}}
    page = json.dumps({"kind": "List", "items": [good, bad, good]}).replace('"VALUE"', nested)
    first, read, last = parse_body(page.encode())["items"]
    assert first == last == good
    inner = read["spec"].pop("x")
    assert read == {**bad, "spec": {"y": [1, {"z": "]"}]}}
    while not isinstance(inner, str):
        inner = next(iter(inner.values() if isinstance(inner, dict) else inner))
    assert inner == "(nested too deeply for tf-dist)"

"""Patches and selectors, as tables of their syntax."""

from __future__ import annotations

from typing import Any

import pytest

from tf_dist.cluster.api_errors import BadRequest
from tf_dist.cluster.apiserver.storage.patch import merge_patch, strategic_merge_patch
from tf_dist.cluster.apiserver.storage.selectors import field_predicate, label_predicate

C1, C2 = {"name": "a", "image": "1"}, {"name": "b", "image": "2"}


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": 1}, {"a": None}, {}),
        ({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": 1}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}),
        ({}, {"a": {"b": None}}, {"a": {}}),
    ],
)
def test_merge_patch_result(target: Any, patch: Any, result: Any) -> None:
    assert merge_patch(target, patch) == result


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"containers": [C1]}, {"containers": [C2]}, {"containers": [C1, C2]}),
        ({"containers": [C1, C2]}, {"containers": [{"name": "a", "$patch": "delete"}]}, {"containers": [C2]}),
        ({"containers": [C1, C2]}, {"containers": [{"$patch": "replace"}, C2]}, {"containers": [C2]}),
        ({"containers": [C1]}, {"containers": [{"name": "a", "x": 1}]}, {"containers": [{**C1, "x": 1}]}),
        ({"ports": [{"containerPort": 1}]}, {"ports": [{"containerPort": 2}]},
         {"ports": [{"containerPort": 1}, {"containerPort": 2}]}),
        ({"ports": [{"port": 1}]}, {"ports": [{"port": 1, "name": "x"}]}, {"ports": [{"port": 1, "name": "x"}]}),
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}, {"tolerations": [{"key": "b"}]}),
        ({"args": ["1"]}, {"args": ["2"]}, {"args": ["2"]}),
        ({"finalizers": ["a"]}, {"finalizers": ["a", "b"]}, {"finalizers": ["a", "b"]}),
        ({"finalizers": ["a", "b"]}, {"$deleteFromPrimitiveList/finalizers": ["a"]}, {"finalizers": ["b"]}),
        ({"m": {"a": 1}}, {"m": {"$patch": "replace", "b": 2}}, {"m": {"b": 2}}),
        ({"m": {"a": 1}}, {"m": {"$patch": "delete"}}, {"m": {}}),
        ({"v": {"name": "x", "emptyDir": {}}}, {"v": {"$retainKeys": ["name", "hostPath"], "hostPath": {}}},
         {"v": {"name": "x", "hostPath": {}}}),
        ({"containers": [C1, C2]}, {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]},
         {"containers": [C2, C1]}),
    ],
)  # fmt: skip
def test_strategic_patch_result(target: Any, patch: Any, result: Any) -> None:
    assert strategic_merge_patch(target, patch) == result


@pytest.mark.parametrize(
    ("selector", "labels", "holds"),
    [
        ("a", {"a": ""}, True),
        ("a=", {"a": ""}, True),
        ("a=", {}, False),
        ("a!=", {}, True),
        ("in in (in)", {"in": "in"}, True),
        ("example.com/a-b.c=d_e", {"example.com/a-b.c": "d_e"}, True),
        (" a = b , ! c ", {"a": "b"}, True),
        ("a notin (b,c)", {}, True),
        ("a in (b, )", {"a": ""}, True),
    ],
)
def test_label_selector_matches(selector: str, labels: dict[str, str], holds: bool) -> None:
    predicate = label_predicate(selector)
    assert predicate is not None
    assert predicate({"metadata": {"labels": labels}}) is holds


@pytest.mark.parametrize("selector", [",", "a,", "a,,b", "a=b c", "in (a)", "a in b", "!", "a>x", "a>1", "a=b=c"])
def test_bad_label_selectors_are_rejected(selector: str) -> None:
    with pytest.raises(BadRequest):
        label_predicate(selector)


@pytest.mark.parametrize(
    ("selector", "holds"),
    [
        ("metadata.name=x", True),
        ("metadata.name==x", True),
        ("metadata.name!=x", False),
        ("spec.number=3,spec.flag=true", True),
        ("spec.none=", True),
        ("spec.none.deeper!=x", True),
        (r"spec.text=a\,b\=c", True),
    ],
)
def test_field_selector_matches(selector: str, holds: bool) -> None:
    obj = {"metadata": {"name": "x"}, "spec": {"number": 3, "flag": True, "text": "a,b=c"}}
    predicate = field_predicate(selector)
    assert predicate is not None
    assert predicate(obj) is holds


@pytest.mark.parametrize("selector", ["a", "=b", "a=b=c"])
def test_bad_field_selectors_are_rejected(selector: str) -> None:
    with pytest.raises(BadRequest):
        field_predicate(selector)

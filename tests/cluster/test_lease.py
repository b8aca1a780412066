"""Leases as values: what an observer concludes from two observations."""

from __future__ import annotations

from typing import Any

import pytest

from tf_dist.cluster.lease import LeaseObservation, system_namespace
from tf_dist.errors import ClusterError


def test_observation_age_counts_from_last_change() -> None:
    def at(version: str) -> dict[str, Any]:
        return {"metadata": {"uid": "u", "resourceVersion": version}, "spec": {"leaseDurationSeconds": 10}}

    seen = LeaseObservation()
    assert seen.age(5.0) == 0.0
    seen.note(at("1"), 100.0)
    seen.note(at("1"), 105.0)
    assert seen.age(109.0) == 9.0
    seen.note(at("2"), 111.0)
    assert seen.age(112.0) == 1.0


@pytest.mark.parametrize("changed", [{"renewTime": "2027-01-15T08:01:07.821860Z"}, {"holderIdentity": "two"}])
def test_renewal_is_noticed_when_restored_etcd_reuses_version(changed: dict[str, str]) -> None:
    spec = {"holderIdentity": "one", "leaseDurationSeconds": 15, "renewTime": "2027-01-15T08:00:34.456601Z"}
    stored = {"metadata": {"uid": "u", "resourceVersion": "84"}, "spec": spec}
    seen = LeaseObservation()
    seen.note(stored, 100.0)
    seen.note({**stored, "spec": {**spec, **changed}}, 133.0)
    assert seen.age(133.0) == 0.0


@pytest.mark.parametrize("value", ["A b", " ", "../x", "x" * 64, "\n", "\udc80"])
def test_variable_without_namespace_is_reported(value: str) -> None:
    """With such a value, a controller would never become the leader."""
    with pytest.raises(ClusterError, match="TF_DIST_SYSTEM_NAMESPACE is not a namespace"):
        system_namespace({"TF_DIST_SYSTEM_NAMESPACE": value})

"""NetworkPolicies that separate the replicas of a job."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.builders import pod, v1_job
from tf_dist.core.diagnostics.network_policies import separated_pods
from tf_dist.core.model import names

JOB = v1_job()
PEERS = {"podSelector": {"matchLabels": {names.JOB_NAME: JOB.key.name}}}
ELSEWHERE = {"matchLabels": {"kubernetes.io/metadata.name": "b"}}
STRANGERS = {"podSelector": {"matchLabels": {"app": "browser"}}}


def policy(name: str = "p", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"podSelector": {}, **spec}}


def found(*policies: dict[str, Any]) -> tuple[str, ...]:
    pods = [pod(JOB, f"worker-{index}") for index in range(2)]
    for one in pods:
        one["spec"]["containers"][0]["ports"] = [{"name": "tfjob-port", "containerPort": 2222}]
    separated = separated_pods(policies, pods, "default")
    return separated.policies if separated else ()


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"policyTypes": ["Ingress"], "ingress": []},
        {"policyTypes": ["Egress"]},
        {"ingress": [{"from": [STRANGERS]}]},
        {"ingress": [{"from": [PEERS], "ports": [{"port": 8080}]}]},
        {"ingress": [{"from": [PEERS], "ports": [{"port": 2222, "protocol": "UDP"}]}]},
        {"ingress": [{"from": [{**PEERS, "namespaceSelector": ELSEWHERE}]}]},
        {"policyTypes": ["Egress"], "egress": [{"to": [STRANGERS]}]},
    ],
)
def test_policy_that_allows_no_peer_separates_replicas(spec: dict[str, Any]) -> None:
    assert found(policy(**spec)) == ("p",)


@pytest.mark.parametrize(
    "spec",
    [
        {"podSelector": {"matchLabels": {"app": "browser"}}},
        {"ingress": [{}]},
        {"ingress": [{"from": [STRANGERS, PEERS]}]},
        {"ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": 2000, "endPort": 3000}]}]},
        {"ingress": [{"ports": [{"port": "tfjob-port"}]}]},
        {"ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]},
        {"ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"team": "vision"}}}]}]},
        {"policyTypes": ["Egress"], "egress": [{"to": [PEERS]}]},
        {"policyTypes": ["Egress"], "egress": [{"ports": [{"port": 2222}]}]},
    ],
)
def test_policy_that_may_allow_peers_is_not_reported(spec: dict[str, Any]) -> None:
    assert found(policy(**spec)) == ()


def test_policies_are_combined() -> None:
    deny = policy("deny")
    assert found(deny, policy("let-in", ingress=[{"from": [PEERS]}])) == ()
    assert found(deny, policy("browsers", ingress=[{"from": [STRANGERS]}])) == ("browsers", "deny")
    assert found() == ()

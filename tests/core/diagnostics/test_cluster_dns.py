"""How long CoreDNS caches denials of the cluster's names, according to its Corefile."""

from __future__ import annotations

import pytest

from tf_dist.core.diagnostics.cluster_dns import denial_seconds

COREFILE = """\
.:53 {{
    errors
    health {{
        lameduck 5s
    }}
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        pods insecure  # as kubeadm has it
        fallthrough in-addr.arpa ip6.arpa
        {ttl}
    }}
    prometheus :9153
    forward . /etc/resolv.conf
    {cache}
    loadbalance
}}
"""
KUBEADM_1_35 = "cache 30 {\n disable success cluster.local\n disable denial cluster.local\n }"


@pytest.mark.parametrize(
    ("ttl", "cache", "seconds"),
    [
        ("ttl 30", "cache 30", 30),  # kubeadm before 1.35, AKS
        ("", "cache 30", 5),  # EKS, k3s
        ("ttl 30", KUBEADM_1_35, 0),
        ("ttl 30", "", 0),
        ("ttl 60", "cache", 60),
        ("ttl 30", "cache 10", 10),
        ("ttl 30", "cache {\n denial 9984 5\n }", 5),
        ("ttl 30", "cache 30 {\n denial 9984\n }", 30),
        ("ttl 30", "cache 30 {\n disable denial\n }", 0),
        ("ttl 30", "cache 30 {\n disable denial example.com\n }", 30),
        ("ttl 30", "cache 30 {\n disable success cluster.local\n }", 30),
        ("ttl 30", "cache 30 example.com", 0),
        ("ttl 30", "cache 30 local.", 30),
    ],
)
def test_reads_cache_time_of_denials(ttl: str, cache: str, seconds: float) -> None:
    assert denial_seconds(COREFILE.format(ttl=ttl, cache=cache)) == seconds


def test_finds_server_of_cluster_among_several() -> None:
    other = "example.com:53 {\n cache 300\n forward . 10.0.0.1\n}\n"
    assert denial_seconds(other + COREFILE.format(ttl="ttl 30", cache="cache 20") + other) == 20


@pytest.mark.parametrize("text", ["", "}", "{", ".:53 {", "cache 30", ".:53 {\n cache x y {\n denial\n ttl", "# {"])
def test_invalid_corefile_gives_zero(text: str) -> None:
    assert denial_seconds(text) == 0

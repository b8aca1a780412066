"""Names in /etc/hosts match those of cluster DNS."""

from __future__ import annotations

from tf_dist.cluster.api import Object
from tf_dist.cluster.kubelet.pod.pod_network import IpAllocator, hosts_entries, hosts_file


def pod(name: str, namespace: str = "ns", phase: str = "Running", **spec: str) -> Object:
    metadata = {"name": name, "namespace": namespace, "uid": f"{namespace}/{name}", "labels": {"app": "x"}}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase}}


def service(name: str, namespace: str = "ns", **selector: str) -> Object:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"selector": selector}}


def names(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        address, _, rest = line.partition("\t")
        for name in rest.split():
            found.setdefault(name, []).append(address)
    return found


def test_hosts_file_has_services_and_their_running_pods() -> None:
    pods = [pod("a", hostname="a-0", subdomain="svc"), pod("b", subdomain="svc"), pod("done", phase="Succeeded")]
    addresses = {"ns/a": "1.1.1.1", "ns/b": "2.2.2.2", "ns/done": "3.3.3.3"}
    found = hosts_entries(pods, [service("svc", app="x"), service("none", app="y"), service("empty")], addresses)
    seen = names(hosts_file(pods[1], "2.2.2.2", found))
    for suffix in ("", ".ns", ".ns.svc", ".ns.svc.cluster.local"):
        assert seen[f"svc{suffix}"] == ["1.1.1.1", "2.2.2.2"]
        assert seen[f"a-0.svc{suffix}"] == ["1.1.1.1"]
    assert seen["b"] == ["2.2.2.2"]
    assert not [name for name in seen if "none" in name or "empty" in name or "done" in name]


def test_short_names_resolve_in_namespace_of_pod() -> None:
    pods = [pod("a", "one"), pod("a", "two")]
    addresses = {"one/a": "1.1.1.1", "two/a": "2.2.2.2"}
    found = hosts_entries(pods, [service("svc", "one", app="x"), service("svc", "two", app="x")], addresses)
    for own, address in (("one", "1.1.1.1"), ("two", "2.2.2.2")):
        seen = names(hosts_file(pod("z", own), "9.9.9.9", found))
        assert seen["svc"] == [address]
        assert (seen["svc.one"], seen["svc.two"]) == (["1.1.1.1"], ["2.2.2.2"])


def test_pod_addresses_derive_from_names_without_collisions() -> None:
    one, two = IpAllocator(), IpAllocator()
    given = [one.of("ns", f"p{number}") for number in range(5000)]
    assert len(set(given)) == 5000
    assert two.of("ns", "p7") == one.of("ns", "p7")
    assert two.keep("ns", "old", "10.88.9.9") == two.of("ns", "old")

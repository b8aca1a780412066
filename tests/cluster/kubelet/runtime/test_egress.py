"""Outbound network of isolated pods: they reach other hosts, but not the localhost of the user."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseRequestHandler, BaseServer, UDPServer

import pytest

from tests.cluster.kubelet.bench import Bench, MakeBench, as_other, make_pod, py, sh, slirps, until, why_no_way_out
from tf_dist.cluster.kubelet.node import machine
from tf_dist.cluster.kubelet.node.node_settings import NetworkMode
from tf_dist.cluster.kubelet.runtime.egress import resolv_conf

FETCH = """
import http.client, time
def fetch(host, port, tries=1):
    for left in reversed(range(tries)):
        try:
            connection = http.client.HTTPConnection(host, port, timeout=60)
            connection.request("GET", "/")
            return connection.getresponse().read().decode()
        except OSError as error:
            if not left:
                return type(error).__name__
            time.sleep(0.05)
"""
ECHO = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(2)
for left in reversed(range(30)):  # datagrams may be lost
    s.sendto(b"a datagram", {where})
    try:
        print(s.recv(99).decode())
        break
    except TimeoutError:
        if not left:
            raise
"""


class Site(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"the data set")

    def log_message(self, *_: object) -> None:
        return


def serving(server: BaseServer) -> Iterator[int]:
    with server:
        run = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        run.start()
        yield server.server_address[1]
        server.shutdown()
        run.join()


@pytest.fixture(scope="module")
def outside() -> str:
    """An address of this machine that is not loopback. For a pod, it is an external address."""
    if machine.host_ip().startswith("127."):
        pytest.skip("this machine has no address but localhost")
    return machine.host_ip()


@pytest.fixture(scope="module")
def site(outside: str) -> Iterator[int]:
    yield from serving(ThreadingHTTPServer((outside, 0), Site))


@pytest.fixture(scope="module")
def private() -> Iterator[int]:
    yield from serving(ThreadingHTTPServer(("127.0.0.1", 0), Site))


def reply(question: bytes, address: str) -> bytes:
    """A DNS response with this address for every name, and no other records."""
    wants_a = question[12:].split(b"\0", 1)[1][:2] == b"\0\1"
    record = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + socket.inet_aton(address)
    asked = question[12 : question.index(b"\0", 12) + 5]
    return question[:2] + b"\x81\x80\0\1" + bytes((0, wants_a)) + bytes(4) + asked + (record if wants_a else b"")


class Echo(BaseRequestHandler):
    def handle(self) -> None:
        data, server = self.request
        server.sendto(self.answer(data), self.client_address)

    def answer(self, data: bytes) -> bytes:
        return data


class Names(Echo):
    """A name server that returns the same address for every name."""

    def answer(self, data: bytes) -> bytes:
        return reply(data, self.server.server_address[0])


@pytest.fixture
def echo(outside: str) -> Iterator[int]:
    yield from serving(UDPServer((outside, 0), Echo))


@pytest.fixture
def name_server(outside: str) -> Iterator[str]:
    try:
        server = UDPServer((outside, 53), Names)
    except OSError as error:
        pytest.skip(f"cannot serve port 53: {error}")
    for _ in serving(server):
        yield outside


@pytest.fixture
def opened(benches: MakeBench) -> Bench:
    """A node whose pods have outbound network."""
    if why_no_way_out():
        pytest.skip(why_no_way_out())
    isolated = benches(network=NetworkMode.ISOLATED)
    assert not any("nothing outside" in limit for limit in isolated.kubelet.network.limits)
    return isolated


def test_pod_reaches_external_tcp_and_udp_servers(opened: Bench, outside: str, site: int, echo: int) -> None:
    opened.run(py("tcp", f"{FETCH}print(fetch({outside!r}, {site}))"))
    assert opened.log("tcp") == "the data set\n"
    opened.run(py("udp", ECHO.format(where=(outside, echo))))
    assert opened.log("udp") == "a datagram\n"


def test_pod_cannot_reach_localhost_of_host(opened: Bench, private: int) -> None:
    opened.run(py("one", f"{FETCH}print([fetch(host, {private}) for host in ('127.0.0.1', '10.88.0.1', '10.88.0.2')])"))
    assert "the data set" not in opened.log("one")
    assert "Error" in opened.log("one")


def test_traffic_between_pods_does_not_pass_slirp(opened: Bench) -> None:
    (slirp,) = slirps(opened.kubelet.supervisor_pid)
    os.kill(slirp, signal.SIGSTOP)
    opened.create(make_pod("serves", "python", "-u", "-m", "http.server", "80"))
    opened.says("serves", "Serving")
    opened.run(py("asks", f"{FETCH}print(len(fetch({opened.status('serves')['podIP']!r}, 80)) > 99)"))
    assert opened.log("asks") == "True\n"


def test_killed_slirp_is_restarted(opened: Bench, outside: str, site: int) -> None:
    (before,) = slirps(opened.kubelet.supervisor_pid)
    os.kill(before, signal.SIGKILL)
    until(lambda: [pid for pid in slirps(opened.kubelet.supervisor_pid) if pid != before], "it is back")
    opened.run(py("one", f"{FETCH}print(fetch({outside!r}, {site}, tries=100))"))
    assert opened.log("one") == "the data set\n"


def test_pods_use_name_server_of_slirp(opened: Bench) -> None:
    opened.run(sh("one", "cat /etc/resolv.conf"))
    assert opened.log("one").startswith("nameserver 10.88.0.3\n")


def test_resolv_conf_keeps_other_lines_of_host() -> None:
    text = "# by hand\nnameserver 127.0.0.53\n nameserver ::1\nsearch corp.example\noptions edns0\n"
    assert resolv_conf(text, "10.88.0.3") == "nameserver 10.88.0.3\n# by hand\nsearch corp.example\noptions edns0\n"


SMOKE = """
import sys
from pathlib import Path
from tests.cluster.kubelet.bench import Bench, make_pod, settings
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.kubelet.kubelet import Kubelet
from tf_dist.cluster.kubelet.node.node_settings import NetworkMode
changes = {"network": NetworkMode.ISOLATED, "workdir": Path("/")}
with MemoryCluster() as cluster, Kubelet(cluster, settings=settings(Path(sys.argv[1]), **changes)) as kubelet:
    bench = Bench(cluster, kubelet)
    bench.run(make_pod("one", sys.executable, "-c", sys.argv[2]))
    print(bench.log("one").strip(), [limit for limit in kubelet.network.limits if "nothing" in limit])
"""
# In a new mount namespace: another name server for the machine, and a tun device for all users.
SURROUNDINGS = """
set -e
echo "nameserver $2" > "$1/resolv.conf"; mount --bind "$1/resolv.conf" /etc/resolv.conf
mknod -m 666 "$1/tun" c 10 200; mount --bind "$1/tun" /dev/net/tun
shift 2; exec "$@"
"""


@pytest.mark.parametrize("who", ["root", "no rights", "nobody"])
def test_external_names_resolve_for_any_user(
    open_folder: Path, name_server: str, site: int, who: str, isolated: Bench
) -> None:
    del isolated  # skips the test without isolated mode
    if why_no_way_out():
        pytest.skip(why_no_way_out())
    around = ["unshare", "--mount", "sh", "-c", SURROUNDINGS, "sh", str(open_folder), name_server]
    done = as_other(who, SMOKE, str(open_folder), f"{FETCH}print(fetch('data.test', {site}))", around=around)
    assert done.stdout == "the data set []\n", done.stderr


@pytest.mark.parametrize(
    ("program", "advice"), [(None, "install slirp4netns"), ("/bin/false", "see why slirp4netns ended")]
)
def test_pods_run_without_slirp_and_limits_contain_advice(
    benches: MakeBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, advice: str
) -> None:
    (tmp_path / "bin").mkdir()
    if program is not None:
        if why_no_way_out():
            pytest.skip(why_no_way_out())
        (tmp_path / "bin" / "slirp4netns").symlink_to(program)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    bench = benches(network=NetworkMode.ISOLATED)
    assert any(advice in limit and "network mode shared" in limit for limit in bench.kubelet.network.limits)
    bench.run(make_pod("one", "/bin/cat", "/proc/net/route", "/etc/resolv.conf"))
    assert "\t00000000\t0" not in bench.log("one").replace("\t00000000\t0001", "")
    assert "10.88.0.3" not in bench.log("one")


def test_slirp_is_reaped_when_kubelet_stops(benches: MakeBench, opened: Bench) -> None:
    del opened  # skips the test without slirp4netns
    bench = benches(network=NetworkMode.ISOLATED)
    (slirp,) = slirps(bench.kubelet.supervisor_pid)
    bench.kubelet.stop()
    assert not Path(f"/proc/{slirp}").exists()


def test_starts_no_slirp_in_shared_mode(shared: Bench) -> None:
    assert not slirps(shared.kubelet.supervisor_pid)
    assert not any("nothing outside" in limit for limit in shared.kubelet.network.limits)

"""The pod sandbox of isolated mode: namespaces, and a network that is configured by rtnetlink."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from dataclasses import dataclass
from typing import NoReturn

from tf_dist.cluster.kubelet.runtime import linux
from tf_dist.cluster.kubelet.runtime.event_loop import Message, encode_message
from tf_dist.cluster.kubelet.runtime.mounts import Mounter
from tf_dist.cluster.kubelet.runtime.shim import Shim, detach_process

_NEWLINK, _NEWADDR, _NEWROUTE = 16, 20, 24
_REQUEST, _ACK, _EXCL, _CREATE = 0x1, 0x4, 0x200, 0x400
_IFF_UP = 1
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_NET_NS_PID = 1, 3, 4, 10, 18, 19
_INFO_KIND, _INFO_DATA, _VETH_PEER = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_OIF, _RTA_GATEWAY = 4, 5


def _attr(kind: int, payload: bytes) -> bytes:
    return struct.pack("HH", 4 + len(payload), kind) + payload + b"\0" * (-len(payload) % 4)


def _name(text: str) -> bytes:
    return _attr(_IFLA_IFNAME, text.encode() + b"\0")


def _mtu(size: int) -> bytes:
    return _attr(_IFLA_MTU, struct.pack("I", size))


def _link(index: int = 0, flags: int = 0, change: int = 0) -> bytes:
    return struct.pack("BBHiII", socket.AF_UNSPEC, 0, 0, index, flags, change)


class Netlink:
    """A rtnetlink socket of the network namespace in which it was opened. A refused request raises OSError."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)  # 0: NETLINK_ROUTE
        self._sequence = 0

    def __enter__(self) -> Netlink:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def bridge(self, name: str) -> int:
        """Create a bridge and switch it on. Returns its index."""
        info = _attr(_INFO_KIND, b"bridge")
        self._ask(_NEWLINK, _link(0, _IFF_UP, _IFF_UP) + _name(name) + _attr(_IFLA_LINKINFO, info), "add bridge", True)
        return socket.if_nametoindex(name)

    def veth(self, name: str, bridge: int, *, peer: str, peer_pid: int, mac: bytes, mtu: int) -> None:
        """Create a veth pair from ``bridge`` into the network namespace of process ``peer_pid``; this end is up."""
        other = _link() + _name(peer) + _attr(_IFLA_NET_NS_PID, struct.pack("I", peer_pid))
        other += _attr(_IFLA_ADDRESS, mac) + _mtu(mtu)
        info = _attr(_INFO_KIND, b"veth") + _attr(_INFO_DATA, _attr(_VETH_PEER, other))
        body = _name(name) + _mtu(mtu) + _attr(_IFLA_MASTER, struct.pack("I", bridge)) + _attr(_IFLA_LINKINFO, info)
        self._ask(_NEWLINK, _link(0, _IFF_UP, _IFF_UP) + body, f"add veth {name}", True)

    def up(self, name: str) -> int:
        """Switch a link on. Returns its index."""
        index = socket.if_nametoindex(name)
        self._ask(_NEWLINK, _link(index, _IFF_UP, _IFF_UP), f"set {name} up")
        return index

    def enslave(self, name: str, bridge: int, *, mtu: int) -> None:
        """Attach a link to a bridge, and switch it on."""
        head = _link(socket.if_nametoindex(name), _IFF_UP, _IFF_UP)
        self._ask(_NEWLINK, head + _mtu(mtu) + _attr(_IFLA_MASTER, struct.pack("I", bridge)), f"plug in {name}")

    def address(self, index: int, ip: str, prefix: int) -> None:
        """Give a link an IPv4 address."""
        raw = socket.inet_aton(ip)
        head = struct.pack("BBBBI", socket.AF_INET, prefix, 0, 0, index)
        self._ask(_NEWADDR, head + _attr(_IFA_LOCAL, raw) + _attr(_IFA_ADDRESS, raw), f"add address {ip}", True)

    def default_route(self, index: int, gateway: str) -> None:
        """Set the default route to ``gateway``."""
        head = struct.pack("BBBBBBBBI", socket.AF_INET, 0, 0, 0, 254, 3, 0, 1, 0)
        body = _attr(_RTA_GATEWAY, socket.inet_aton(gateway)) + _attr(_RTA_OIF, struct.pack("I", index))
        self._ask(_NEWROUTE, head + body, f"route by {gateway}", True)

    def _ask(self, kind: int, body: bytes, what: str, create: bool = False) -> None:
        self._sequence += 1
        flags = _REQUEST | _ACK | (_CREATE | _EXCL if create else 0)
        self._socket.send(struct.pack("IHHII", 16 + len(body), kind, flags, self._sequence, 0) + body)
        error = -struct.unpack_from("i", self._socket.recv(65536), 16)[0]
        if error:
            raise OSError(error, f"{what}: {os.strerror(error)}")


BRIDGE = "tfd0"
RESOLV = "/etc/resolv.conf"
MTU = 65520  # with large packets, slirp4netns moves 4 times as much data as with an MTU of 1500
_POD = linux.CLONE_NEWNET | linux.CLONE_NEWNS | linux.CLONE_NEWUTS | linux.CLONE_NEWIPC | linux.CLONE_NEWPID


@dataclass(frozen=True, slots=True)
class PodSubnet:
    """The subnet of pods: the bridge's address (the first), the prefix length, and whether pods have egress."""

    bridge: str
    prefix: int
    open: bool = False
    resolv: str = ""  # the file that pods see as /etc/resolv.conf; "": the machine's own

    @property
    def cidr(self) -> str:
        """The whole subnet, as ``10.88.0.0/16``."""
        return f"{self._beside(-1)}/{self.prefix}"

    @property
    def gateway(self) -> str:
        """The gateway of slirp4netns: by convention the second address."""
        return self._beside(1)

    @property
    def dns(self) -> str:
        """The name server of slirp4netns: the third address."""
        return self._beside(2)

    def _beside(self, step: int) -> str:
        number = int.from_bytes(socket.inet_aton(self.bridge), "big") + step
        return socket.inet_ntoa(number.to_bytes(4, "big"))


def enter_network(subnet: PodSubnet) -> int:
    """Move this process (the supervisor) into its own network with a bridge. Returns the bridge's index."""
    flags = linux.CLONE_NEWNET | linux.CLONE_NEWNS
    if linux.has_sys_admin():
        linux.unshare(flags)
    else:
        uid, gid = os.geteuid(), os.getegid()
        linux.unshare(flags | linux.CLONE_NEWUSER)
        _map_ids(uid, gid)
    linux.mount("", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    with Netlink() as net:
        net.up("lo")
        index = net.bridge(BRIDGE)
        net.address(index, subnet.bridge, subnet.prefix)
    return index


def _map_ids(uid: int, gid: int) -> None:
    """Map this user to itself: files keep their owner, programs see their own user, capabilities end at exec."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def mac_address(ip: str) -> bytes:
    """A hardware address derived from the IP, so that no ARP entry of a restarted replica is stale."""
    return b"\x02\x42" + socket.inet_aton(ip)


def create_sandbox(pod: Message, subnet: PodSubnet, bridge: int, cable: str, control: socket.socket) -> int:
    """Fork a shim as process 1 of new namespaces, and connect it to the bridge. Returns its pid.

    The shim waits for a newline on its control socket.
    """
    read, write = os.pipe()
    middle = os.fork()
    if middle == 0:
        _unshare_and_fork(pod, subnet, control, write)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        answer = file.read()
    os.waitpid(middle, 0)
    if len(answer) != 4:
        raise OSError(f"cannot make the pod's namespaces: {answer.decode() or 'the process died'}")
    pid: int = struct.unpack("i", answer)[0]
    with Netlink() as net:
        net.veth(cable, bridge, peer="eth0", peer_pid=pid, mac=mac_address(pod["ip"]), mtu=MTU)
    return pid


def _unshare_and_fork(pod: Message, subnet: PodSubnet, control: socket.socket, report: int) -> NoReturn:
    """Create the namespaces, and fork the child that is their process 1. Runs in the intermediate process."""
    try:
        linux.unshare(_POD)
        pid = os.fork()
        if pid == 0:
            _sandbox_init(pod, subnet, control)
        os.write(report, struct.pack("i", pid))
    except OSError as error:
        os.write(report, str(error).encode())
    finally:
        os._exit(0)


def _sandbox_init(pod: Message, subnet: PodSubnet, control: socket.socket) -> NoReturn:
    """Process 1 of the pod."""
    try:
        detach_process(control)
        if control.recv(1) != b"\n":  # the network is connected, and the supervisor is now our parent
            os._exit(0)
        linux.die_with_parent(9)
        _set_up(pod, subnet)
        control.sendall(encode_message({"event": "ready"}))
        Shim(control, isolated=True, staging=pod["staging"]).run()
    except BaseException as error:
        with contextlib.suppress(OSError):
            control.sendall(encode_message({"event": "broken", "message": str(error)}))
    finally:
        os._exit(1)


def _set_up(pod: Message, subnet: PodSubnet) -> None:
    socket.sethostname(pod["hostname"])
    linux.mount("", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    if os.path.isdir("/dev/shm"):
        linux.mount("shm", "/dev/shm", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=1777")
    for volume in pod.get("tmpfs", ()):
        linux.mount("tmpfs", volume["path"], "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, volume["options"])
    Mounter(pod["staging"]).volumes([*pod.get("mounts", ()), *_resolver(subnet)])
    _configure_interface(pod["ip"], subnet)


def _resolver(subnet: PodSubnet) -> list[Message]:
    """The mount of a resolv.conf for pods; none on a machine without /etc/resolv.conf."""
    wanted = subnet.resolv and os.path.exists(RESOLV)
    return [{"source": subnet.resolv, "target": RESOLV}] if wanted else []


def _configure_interface(ip: str, subnet: PodSubnet) -> None:
    with Netlink() as net:
        net.up("lo")
        index = net.up("eth0")
        net.address(index, ip, subnet.prefix)
        if subnet.open:
            net.default_route(index, subnet.gateway)
    with contextlib.suppress(OSError), open("/proc/sys/net/ipv4/ip_unprivileged_port_start", "w") as file:
        file.write("0")
